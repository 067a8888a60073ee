// The steps that are taken for many parameters at once, on the state of torch::optim's optimizers: by
// libtorch's fused kernels, or in its foreach operations.
//
// Both work on memory, not strides. A parameter must fill its memory without gaps, and its gradient and state must lie
// in memory as it does. Gradients in another order are copied. All other exceptions are left to the optimizer's own
// step.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "hasten/optim/steps/optimizer_step.h"

namespace hasten::optim::detail {

/// The ways to step a parameter. A fused kernel goes first, then foreach, then the optimizer's own step.
struct StepChoice {
  bool fused = true;
  /// Whether foreach operations may step what is on a device; null: on none. Prepared optimizers use CUDA; tests, which
  /// run without it, use CPU.
  bool (*foreach_on)(c10::Device) = nullptr;
  bool maximize = false;
};

StepChoice choice_of(const PreparedOptimizerOptions& options);

struct MultiTensorStep {
  std::vector<at::Tensor> stepped;
  /// Parameters with a gradient that are left to the optimizer's own step.
  size_t num_left = 0;
};

/// Makes the states that an Adagrad, whose constructor makes them, lacks for parameters that were added later.
void make_late_states(torch::optim::Optimizer& optimizer);

/// Returns true if the optimizer is exactly an SGD, Adam, AdamW, Adagrad or RMSprop of torch::optim. A derived class
/// may step in a way of its own.
bool has_multi_tensor_step(const torch::optim::Optimizer& optimizer);

/// Steps every parameter that the choice lets it. Requires has_multi_tensor_step.
MultiTensorStep multi_tensor_step(torch::optim::Optimizer& optimizer, const StepChoice& choice);

/// Makes the whole step with a choice of one's own. Parameters that it leaves take the optimizer's own step.
at::Tensor optimizer_step(torch::optim::Optimizer& optimizer, const StepChoice& choice,
                          const torch::optim::Optimizer::LossClosure& closure = nullptr);

}  // namespace hasten::optim::detail
