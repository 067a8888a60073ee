// See deepspeed.h.
#include "hasten/optim/deepspeed.h"

#include <torch/types.h>

#include <cmath>

#include "optim/moment_optimizer.h"

namespace hasten::optim::deepspeed {

Lion::Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups, LionOptions defaults)
    : Optimizer(groups, std::make_unique<LionOptions>(defaults)) {
  detail::require_at_least_0("Lion", "lr", defaults.lr());
  detail::require_at_least_0("Lion", "weight_decay", defaults.weight_decay());
}

at::Tensor Lion::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = detail::loss_of(closure);
  detail::for_gradients<LionOptions>(*this, [&](const LionOptions& options, const at::Tensor& parameter) {
    auto& state = detail::moment_state(*this, parameter);
    const detail::Target target(parameter, state, false);
    if (!state.first().defined()) state.first(detail::moment_like(target.weight));
    state.step(state.step() + 1);
    const auto [beta1, beta2] = options.betas();
    const at::Tensor direction = (state.first() * beta1).add_(target.gradient, 1 - beta1).sign_();
    if (options.weight_decay() != 0) target.weight.mul_(1 - options.lr() * options.weight_decay());
    target.weight.add_(direction, -options.lr());
    state.first().mul_(beta2).add_(target.gradient, 1 - beta2);
    target.finish();
  });
  return loss;
}

void LionOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void LionOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

void Lion::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<detail::MomentState, LionOptions>(archive, *this);
}

void Lion::load(torch::serialize::InputArchive& archive) {
  detail::load_optimizer<LionOptions>(archive, *this);
}

Lamb::Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults)
    : Optimizer(groups, std::make_unique<LambOptions>(defaults)) {
  detail::require_at_least_0("Lamb", "lr", defaults.lr());
  detail::require_at_least_0("Lamb", "eps", defaults.eps());
  detail::require_at_least_0("Lamb", "weight_decay", defaults.weight_decay());
  detail::require_at_least_0("Lamb", "min_coeff", defaults.min_coeff());
  detail::require_at_least_0("Lamb", "max_coeff - min_coeff", defaults.max_coeff() - defaults.min_coeff());
}

at::Tensor Lamb::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = detail::loss_of(closure);
  detail::for_gradients<LambOptions>(*this, [&](const LambOptions& options, const at::Tensor& parameter) {
    auto& state = detail::moment_state(*this, parameter);
    const detail::Target target(parameter, state, false);
    if (!state.first().defined()) {
      state.first(detail::moment_like(target.weight));
      state.second(detail::moment_like(target.weight));
    }
    state.step(state.step() + 1);
    const auto [beta1, beta2] = options.betas();
    state.first().mul_(beta1).add_(target.gradient, 1 - beta1);
    state.second().mul_(beta2).addcmul_(target.gradient, target.gradient, 1 - beta2);
    const at::Tensor below = options.eps_inside_sqrt() ? (state.second() + options.eps()).sqrt_()
                                                       : state.second().sqrt().add_(options.eps());
    at::Tensor update = state.first() / below;
    if (options.weight_decay() != 0) update.add_(target.weight, options.weight_decay());
    double rate = options.lr();
    if (options.bias_correction()) {
      const auto t = static_cast<double>(state.step());
      rate *= std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));
    }
    const at::Tensor weight_norm = target.weight.norm(), update_norm = update.norm();
    const at::Tensor both = (weight_norm > 0).logical_and(update_norm > 0);
    const at::Tensor ratio = (weight_norm / update_norm).clamp(options.min_coeff(), options.max_coeff());
    target.weight.sub_(update.mul_(at::where(both, ratio, at::ones_like(ratio))), rate);
    target.finish();
  });
  return loss;
}

void LambOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(bias_correction);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps_inside_sqrt);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(max_coeff);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(min_coeff);
}

void LambOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, bias_correction);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, eps_inside_sqrt);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, max_coeff);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, min_coeff);
}

void Lamb::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<detail::MomentState, LambOptions>(archive, *this);
}

void Lamb::load(torch::serialize::InputArchive& archive) {
  detail::load_optimizer<LambOptions>(archive, *this);
}

}  // namespace hasten::optim::deepspeed
