// optimizer_step: one step of any of libtorch's optimizers, with a fused kernel where libtorch has one.
//
// libtorch's own optimizers are loops of small operations, each of which goes through memory once; its fused
// kernels, which PyTorch uses for `fused=True`, do a parameter's whole step in one pass. They work on the
// state objects of torch::optim, so that saving, loading, and a change between the two at any step go on
// working. Which parameters a kernel may take, and the calls, stand in src/optim/fused_kernels.h; when a
// prepared optimizer steps is prepared_optimizer.h's matter.
#pragma once

#include <torch/optim/optimizer.h>

namespace hasten::optim {

struct PreparedOptimizerOptions {
  /// SGD, Adam, AdamW and Adagrad step with libtorch's fused kernels, on CPU and CUDA: 3 times as fast on a
  /// CPU, equal to torch::optim's own step to 1e-6. Parameters and gradients in half precision, sparse
  /// gradients, parameters with gaps in memory, other optimizers, and classes derived from those four take
  /// their own step(). false: all of them, bit for bit.
  bool fused = true;
  /// Maximises the loss, as PyTorch's option of this name: steps with negated gradients, before weight decay.
  /// libtorch's optimizers have no such option; this works for all of them.
  bool maximize = false;
};

/// One step. Parameters without a gradient keep their values. `closure`, which optimizers that evaluate the
/// loss several times need (LBFGS), computes the loss anew and its gradients. Returns the closure's loss, of
/// its first call; undefined without one. With `maximize`, gradients are as before when it returns or throws.
/// Collective: no (the closure may be). Blocks: no. Throws: what the optimizer and the closure throw.
at::Tensor optimizer_step(torch::optim::Optimizer& optimizer, const PreparedOptimizerOptions& options = {},
                          const torch::optim::Optimizer::LossClosure& closure = nullptr);

}  // namespace hasten::optim
