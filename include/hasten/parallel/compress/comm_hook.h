// CommHook: a function that replaces the all-reduce of a full bucket of gradients (the communication hooks of torch's
// DDP).
//
// A hook is a function, so a lambda can be a hook; its captures hold its state. Given through DdpOptions::comm_hook.
// Compression by low rank: power_sgd.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::parallel {

/// Gradients that travel together, scaled already so that their sum over the ranks is the result.
struct GradientBucket {
  /// All of them, flat: [numel], contiguous.
  at::Tensor buffer;
  /// Gradients, each in the shape of its parameter, in the buffer's memory; zeros where this rank has none.
  std::vector<at::Tensor> gradients;
  /// The parameters of the gradients. The parameters of a bucket may change between steps, so state belongs to a
  /// parameter.
  std::vector<at::Tensor> parameters;
};

/// Starts to make `bucket.buffer` the sum of all ranks' buffers, or something close to it, the same bits on every rank.
/// Called on every rank for the same buckets in the same order, while backward goes on and without gradient mode.
/// wait() is called in that order too, at the end of backward, and may communicate as well. hasten's own data (which
/// gradients exist) does not pass through the hook.
using CommHook = std::function<comm::Work<>(const GradientBucket& bucket, const comm::Group& group)>;

/// Gradients of float32 and float64 travel as float16 or bfloat16: half the bytes or less, and sums of that precision.
/// float16 holds 11 bits up to 65504, beyond which gradients become infinite. bfloat16 holds 8 bits of any size. Other
/// dtypes travel as they are.
CommHook fp16_compress();
CommHook bf16_compress();

}  // namespace hasten::parallel
