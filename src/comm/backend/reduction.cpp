// See reduction.h.
#include "comm/backend/reduction.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>
#include <type_traits>

namespace hasten::comm::shared {
namespace {

// How values are stored, and what they are computed in.
template <class T>
struct Plain {
  using Stored = T;
  using Computed = T;
};
// Arithmetic of signed numbers must not overflow, that of unsigned ones wraps. Small ones would be promoted to int.
template <class T>
struct Whole {
  using Stored = T;
  using Computed = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
};
struct Bfloat16 {
  using Stored = uint16_t;
  using Computed = float;
};
struct Half {
  using Stored = uint16_t;
  using Computed = float;
};

enum class Op { kSum, kMean, kProduct, kMin, kMax, kAnd, kOr, kXor };

}  // namespace

#define HASTEN_INSTRUCTIONS generic
#define HASTEN_TARGET
#include "comm/backend/reduction_loops.inc"
#undef HASTEN_INSTRUCTIONS
#undef HASTEN_TARGET

#if defined(__x86_64__)
#define HASTEN_INSTRUCTIONS avx2
#define HASTEN_TARGET __attribute__((target("avx2,fma,f16c")))
#include "comm/backend/reduction_loops.inc"
#undef HASTEN_INSTRUCTIONS
#undef HASTEN_TARGET

#define HASTEN_INSTRUCTIONS avx512
#define HASTEN_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#include "comm/backend/reduction_loops.inc"
#undef HASTEN_INSTRUCTIONS
#undef HASTEN_TARGET
#endif

Routines routines(c10::ScalarType dtype, ReduceOp op, const char* instructions) {
#if defined(__x86_64__)
  if (std::strcmp(instructions, "avx512") == 0) {
    const bool there = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return there ? avx512::choose(dtype, op) : Routines{};
  }
  if (std::strcmp(instructions, "avx2") == 0) {
    const bool there = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return there ? avx2::choose(dtype, op) : Routines{};
  }
#endif
  return std::strcmp(instructions, "generic") == 0 ? generic::choose(dtype, op) : Routines{};
}

Routines routines(c10::ScalarType dtype, ReduceOp op) {
  for (const char* instructions : {"avx512", "avx2"}) {
    if (const Routines found = routines(dtype, op, instructions); found.reduce != nullptr) return found;
  }
  return generic::choose(dtype, op);
}

}  // namespace hasten::comm::shared
