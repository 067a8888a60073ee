// The calls of libtorch's fused kernels; see fused_kernels.h.
#include "optim/steps/fused_kernels.h"

#include <tuple>

#include "optim/steps/one_thread.h"

namespace hasten::optim::detail {
namespace {

// The step for each parameter: CUDA's kernels read floats, the CPU's convert.
std::vector<at::Tensor> steps(const ParameterBatch& batch) {
  const auto dtype = batch.device.is_cpu() ? at::kDouble : at::kFloat;
  return {batch.params.size(), at::full({}, batch.step, at::TensorOptions().device(batch.device).dtype(dtype))};
}

// Adam and AdamW, whose kernels and options differ in their types only.
template <class Options, class Kernel>
void adam_step(ParameterBatch& batch, const Options& options, bool maximize, const Kernel& kernel) {
  const OneThread one_thread(batch.small);
  const auto [beta1, beta2] = options.betas();
  kernel(batch.params, batch.grads, batch.states[0], batch.states[1], batch.states[2], steps(batch), options.lr(),
         beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), maximize);
}

}  // namespace

void fused_step(ParameterBatch& batch, const torch::optim::SGDOptions& options, bool maximize) {
  // A step without state and decay is one addition. Of large parameters libtorch does that in two thirds of
  // its kernel's time.
  const bool is_addition = options.momentum() == 0 && options.weight_decay() == 0;
  if (is_addition && batch.device.is_cpu() && !batch.small) {
    for (size_t i = 0; i < batch.params.size(); ++i) {
      batch.params[i].add_(batch.grads[i], maximize ? options.lr() : -options.lr());
    }
    return;
  }
  const OneThread one_thread(batch.small);
  at::_fused_sgd_(batch.params, batch.grads, batch.states[0], options.weight_decay(), options.momentum(), options.lr(),
                  options.dampening(), options.nesterov(), maximize,
                  /*is_first_step=*/batch.step == 0 && !batch.states[0].empty());
}

void fused_step(ParameterBatch& batch, const torch::optim::AdamOptions& options, bool maximize) {
  adam_step(batch, options, maximize, [](const auto&... arguments) { at::_fused_adam_(arguments...); });
}

void fused_step(ParameterBatch& batch, const torch::optim::AdamWOptions& options, bool maximize) {
  adam_step(batch, options, maximize, [](const auto&... arguments) { at::_fused_adamw_(arguments...); });
}

void fused_step(ParameterBatch& batch, const torch::optim::AdagradOptions& options, bool maximize) {
  const OneThread one_thread(batch.small);
  at::_fused_adagrad_(batch.params, batch.grads, batch.states[0], steps(batch), options.lr(), options.lr_decay(),
                      options.weight_decay(), options.eps(), maximize);
}

}  // namespace hasten::optim::detail
