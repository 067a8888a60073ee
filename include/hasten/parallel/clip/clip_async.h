// Clipping on devices: with a norm that stays a tensor, so that their queue is not waited for, or with one wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hasten::parallel {

/// Scales whole gradients so that their 2-norm is at most max_norm. Returns the norm before, a float32 scalar on the
/// device of the first gradient. If that norm is not finite, gradients stay as they are.
/// Throws: UsageError for a max_norm that is NaN or below 0.
at::Tensor clip_gradients_async_(const std::vector<at::Tensor>& parameters, double max_norm);

/// Returns true if there are gradients and all lie on devices with memory of their own.
bool are_on_devices(const std::vector<at::Tensor>& parameters);

/// torch::nn::utils::clip_grad_norm_ for such gradients: some kernels for all of them, where torch starts two for each.
/// Blocks: once, for the norm.
double clip_device_gradients_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type);

}  // namespace hasten::parallel
