// kernels.inc, compiled for three instruction sets; the choice at run time.
//
// gnu::target on each function and a choice by __builtin_cpu_supports. target_clones is not used: clang 16 drops it
// silently, and it crashes in the loader under ThreadSanitizer. The file is built with two flags (CMakeLists.txt).
// Without -ffp-contract=off each variant would round in its own way. Without -fno-math-errno loops with a square root
// would stay scalar.
#include "optim/steps/kernels.h"

#include <cstddef>

#define HASTEN_INSTRUCTIONS generic
#define HASTEN_TARGET
namespace hasten::optim::steps::detail {
#include "optim/steps/kernels.inc"
}
#undef HASTEN_INSTRUCTIONS
#undef HASTEN_TARGET

#if defined(__x86_64__)
#define HASTEN_INSTRUCTIONS avx2
#define HASTEN_TARGET [[gnu::target("avx2,fma,bmi,bmi2,f16c,lzcnt,movbe")]]
namespace hasten::optim::steps::detail {
#include "optim/steps/kernels.inc"
}
#undef HASTEN_INSTRUCTIONS
#undef HASTEN_TARGET

#define HASTEN_INSTRUCTIONS avx512
#define HASTEN_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,bmi,bmi2,f16c,lzcnt,movbe")]]
namespace hasten::optim::steps::detail {
#include "optim/steps/kernels.inc"
}
#undef HASTEN_INSTRUCTIONS
#undef HASTEN_TARGET
#endif

namespace hasten::optim::steps {

bool has_instructions(Instructions instructions) noexcept {
  switch (instructions) {
    case Instructions::kGeneric:
      return true;
#if defined(__x86_64__)
    case Instructions::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    case Instructions::kAvx512:
      return has_instructions(Instructions::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
#endif
    default:
      return false;
  }
}

Instructions best_instructions() noexcept {
  static const Instructions best = has_instructions(Instructions::kAvx512) ? Instructions::kAvx512
                                   : has_instructions(Instructions::kAvx2) ? Instructions::kAvx2
                                                                           : Instructions::kGeneric;
  return best;
}

const detail::Kernels& detail::kernels(Instructions instructions) noexcept {
#if defined(__x86_64__)
  if (instructions == Instructions::kAvx512) return avx512::kTable;
  if (instructions == Instructions::kAvx2) return avx2::kTable;
#endif
  (void)instructions;
  return generic::kTable;
}

}  // namespace hasten::optim::steps
