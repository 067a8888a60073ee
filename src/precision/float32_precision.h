// How exactly float32 operators compute: libtorch's settings of TF32 on CUDA and of bfloat16 within oneDNN on a CPU.
//
// They are the whole process's, as in PyTorch (torch.backends.*.fp32_precision), and hasten leaves them alone by
// default.
#pragma once

#include <optional>

namespace hasten::precision {

/// kIeee: float32 throughout. kTf32: 10 bits of mantissa. kBf16: 7 bits, on a CPU only.
enum class Float32Precision { kIeee, kTf32, kBf16 };

/// The precision that operators of a kind may use; unset: it stays.
struct Float32Options {
  std::optional<Float32Precision> matmul = {};
  std::optional<Float32Precision> conv = {};
  std::optional<Float32Precision> rnn = {};
};

/// Sets libtorch's precision of the given operators, on CUDA and in oneDNN, for the whole process. kBf16 leaves CUDA
/// alone.
void set_float32_precision(const Float32Options& options);

/// Returns what oneDNN (`cuda`: CUDA) may use now; unset where libtorch's default holds.
Float32Options float32_precision(bool cuda = false);

}  // namespace hasten::precision
