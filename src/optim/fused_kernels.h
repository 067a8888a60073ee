// The steps that libtorch's fused kernels take, on the state of torch::optim's optimizers.
//
// The kernels see memory, not strides: a parameter must fill its memory without gaps, and its gradient and
// state must lie in memory as it does. Gradients that do not are copied; what else does not fit is left to
// the optimizer's own step.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace hasten::optim::detail {

struct FusedStep {
  std::vector<at::Tensor> stepped;
  /// Parameters with a gradient that no kernel may take.
  size_t num_left = 0;
};

/// Whether the optimizer is exactly an SGD, Adam, AdamW or Adagrad of torch::optim: a derived class may step
/// in a way of its own.
bool has_fused_kernel(const torch::optim::Optimizer& optimizer);

/// Steps every parameter that a kernel may take. Requires has_fused_kernel.
FusedStep fused_step(torch::optim::Optimizer& optimizer, bool maximize);

}  // namespace hasten::optim::detail
