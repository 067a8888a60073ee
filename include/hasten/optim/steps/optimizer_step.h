// optimizer_step: one step of any of libtorch's optimizers, with a fused kernel where libtorch has one.
//
// libtorch's own optimizers are loops of small operations, each of which goes through memory once. Its fused kernels,
// which PyTorch uses for `fused=True`, do a parameter's whole step in one pass. Its foreach operations, PyTorch's
// default on CUDA, do one such operation for many parameters. Both work on the state objects of torch::optim. So
// saving, loading, and a change between them at any step go on working. src/optim/steps/multi_tensor_step.h decides
// which parameters they may take. prepared_optimizer.h decides when a prepared optimizer steps.
#pragma once

#include <torch/optim/optimizer.h>

#include <optional>

namespace hasten::optim {

struct PreparedOptimizerOptions {
  /// SGD, Adam, AdamW and Adagrad step with libtorch's fused kernels, on CPU and CUDA. They are 3 times as fast on a
  /// CPU, and equal to torch::optim's own step to 1e-6. Parameters and gradients in half precision, sparse gradients,
  /// gaps in memory, other optimizers, and classes derived from those four take their own step(). On CUDA they may use
  /// `foreach`. If false, all of them take their own step, bit for bit.
  bool fused = true;
  /// On CUDA, steps of SGD, Adam, AdamW, Adagrad and RMSprop without a fused kernel (RMSprop itself, half precision)
  /// use libtorch's foreach operations. A kernel launch then serves all parameters alike. Results equal torch::optim's
  /// own step to 1e-6, in half precision to its rounding. Sparse gradients and gaps in memory take the own step. Unset:
  /// as `fused`, so that .fused = false alone means no foreach either. Without effect on a CPU, where it would save
  /// nothing.
  std::optional<bool> foreach = {};
  /// Maximises the loss, as PyTorch's option of this name. It steps with negated gradients, before weight decay.
  /// libtorch's optimizers have no such option; this works for all of them.
  bool maximize = false;
};

/// Makes a step. Parameters without a gradient keep their values. `closure`, which optimizers that evaluate the loss
/// several times need (LBFGS), computes the loss anew and its gradients. Returns the closure's loss, of its first call;
/// undefined without one. With `maximize`, gradients are as before when it returns or throws.
/// Collective: no (the closure may be). Throws: the exceptions of the optimizer and the closure.
at::Tensor optimizer_step(torch::optim::Optimizer& optimizer, const PreparedOptimizerOptions& options = {},
                          const torch::optim::Optimizer::LossClosure& closure = nullptr);

}  // namespace hasten::optim
