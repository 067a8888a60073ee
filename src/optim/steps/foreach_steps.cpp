// Optimizers' steps in foreach operations; see foreach_steps.h.
#include "optim/steps/foreach_steps.h"

#include <cmath>
#include <tuple>

namespace hasten::optim::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

// The gradients as a step begins with them: negated to maximize, then with the weight decay. The parameters'
// own are not written to.
Tensors gradients(const ParameterBatch& batch, double weight_decay, bool maximize) {
  Tensors grads = maximize ? at::_foreach_neg(batch.grads) : batch.grads;
  if (weight_decay == 0) return grads;
  if (!maximize) return at::_foreach_add(grads, batch.params, weight_decay);
  at::_foreach_add_(grads, batch.params, weight_decay);
  return grads;
}

// average = factor * average + share * values
void decay_and_add(const Tensors& average, double factor, const Tensors& values, double share) {
  at::_foreach_mul_(average, factor);
  at::_foreach_add_(average, values, share);
}

// average = factor * average + (1 - factor) * values²
void decay_and_add_squares(const Tensors& average, double factor, const Tensors& values) {
  at::_foreach_mul_(average, factor);
  at::_foreach_addcmul_(average, values, values, 1 - factor);
}

// Adam, and AdamW after its weight decay.
template <class Options>
void adam_step(const ParameterBatch& batch, const Options& options, const Tensors& grads) {
  const auto [beta1, beta2] = options.betas();
  const auto& [exp_avg, exp_avg_sq, max_exp_avg_sq] = batch.states;
  decay_and_add(exp_avg, beta1, grads, 1 - beta1);
  decay_and_add_squares(exp_avg_sq, beta2, grads);
  if (options.amsgrad()) at::_foreach_maximum_(max_exp_avg_sq, exp_avg_sq);
  const auto step = static_cast<double>(batch.step);
  const Tensors denominators = at::_foreach_sqrt(options.amsgrad() ? max_exp_avg_sq : exp_avg_sq);
  at::_foreach_div_(denominators, std::sqrt(1 - std::pow(beta2, step)));
  at::_foreach_add_(denominators, options.eps());
  at::_foreach_addcdiv_(batch.params, exp_avg, denominators, -options.lr() / (1 - std::pow(beta1, step)));
}

}  // namespace

void foreach_step(ParameterBatch& batch, const torch::optim::SGDOptions& options, bool maximize) {
  Tensors grads = gradients(batch, options.weight_decay(), maximize);
  if (options.momentum() != 0) {
    const Tensors& buffers = batch.states[0];
    if (batch.step == 0) {
      at::_foreach_copy_(buffers, grads);
    } else {
      decay_and_add(buffers, options.momentum(), grads, 1 - options.dampening());
    }
    grads = options.nesterov() ? at::_foreach_add(grads, buffers, options.momentum()) : buffers;
  }
  at::_foreach_add_(batch.params, grads, -options.lr());
}

void foreach_step(ParameterBatch& batch, const torch::optim::AdamOptions& options, bool maximize) {
  adam_step(batch, options, gradients(batch, options.weight_decay(), maximize));
}

void foreach_step(ParameterBatch& batch, const torch::optim::AdamWOptions& options, bool maximize) {
  const double decay = options.lr() * options.weight_decay();
  if (decay != 0) at::_foreach_mul_(batch.params, 1 - decay);
  adam_step(batch, options, gradients(batch, 0, maximize));
}

void foreach_step(ParameterBatch& batch, const torch::optim::AdagradOptions& options, bool maximize) {
  const Tensors grads = gradients(batch, options.weight_decay(), maximize);
  const double rate = options.lr() / (1 + static_cast<double>(batch.step - 1) * options.lr_decay());
  at::_foreach_addcmul_(batch.states[0], grads, grads, 1);
  const Tensors denominators = at::_foreach_sqrt(batch.states[0]);
  at::_foreach_add_(denominators, options.eps());
  at::_foreach_addcdiv_(batch.params, grads, denominators, -rate);
}

void foreach_step(ParameterBatch& batch, const torch::optim::RMSpropOptions& options, bool maximize) {
  const Tensors grads = gradients(batch, options.weight_decay(), maximize);
  const auto& [square_avg, momentum_buffer, grad_avg] = batch.states;
  decay_and_add_squares(square_avg, options.alpha(), grads);
  Tensors denominators;
  if (options.centered()) {
    decay_and_add(grad_avg, options.alpha(), grads, 1 - options.alpha());
    denominators = at::_foreach_addcmul(square_avg, grad_avg, grad_avg, -1);
    at::_foreach_sqrt_(denominators);
  } else {
    denominators = at::_foreach_sqrt(square_avg);
  }
  at::_foreach_add_(denominators, options.eps());
  if (options.momentum() > 0) {
    at::_foreach_mul_(momentum_buffer, options.momentum());
    at::_foreach_addcdiv_(momentum_buffer, grads, denominators, 1);
    at::_foreach_add_(batch.params, momentum_buffer, -options.lr());
  } else {
    at::_foreach_addcdiv_(batch.params, grads, denominators, -options.lr());
  }
}

}  // namespace hasten::optim::detail
