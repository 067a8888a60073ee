// clip_gradients_ whose norm stays a tensor, so that a device's queue is not waited for.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hasten::parallel {

/// Scales whole gradients so that their 2-norm is at most max_norm. Returns the norm before, a float32 scalar on the
/// device of the first gradient. If that norm is not finite, gradients stay as they are.
/// Collective: no. Blocks: no. Throws: UsageError for a max_norm that is NaN or below 0.
at::Tensor clip_gradients_async_(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace hasten::parallel
