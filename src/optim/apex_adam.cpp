// See apex_adam.h.
#include "hasten/optim/apex_adam.h"

#include <cmath>

#include "optim/moment_optimizer.h"

namespace hasten::optim {
namespace {

// The rule in operators, for parameters that are not on the CPU and for float64.
void step_by_operators(const detail::Target& target, const steps::Adam& rule, detail::MomentState& state) {
  at::Tensor gradient = target.gradient;
  if (!rule.decoupled_decay && rule.weight_decay != 0) gradient = gradient.add(target.weight, rule.weight_decay);
  state.first().mul_(rule.beta1).add_(gradient, 1 - rule.beta1);
  state.second().mul_(rule.beta2).addcmul_(gradient, gradient, 1 - rule.beta2);
  const auto t = static_cast<double>(rule.step);
  const double correction1 = rule.bias_correction ? 1 - std::pow(rule.beta1, t) : 1;
  const double correction2 = rule.bias_correction ? 1 - std::pow(rule.beta2, t) : 1;
  if (rule.decoupled_decay) target.weight.mul_(1 - rule.lr * rule.weight_decay);
  target.weight.addcdiv_(state.first(), (state.second() / correction2).sqrt_().add_(rule.eps), -rule.lr / correction1);
  target.finish();
}

}  // namespace

ApexAdam::ApexAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, ApexAdamOptions defaults)
    : Optimizer(groups, std::make_unique<ApexAdamOptions>(defaults)) {
  detail::require_at_least_0("ApexAdam", "lr", defaults.lr());
  detail::require_at_least_0("ApexAdam", "eps", defaults.eps());
  detail::require_at_least_0("ApexAdam", "weight_decay", defaults.weight_decay());
  if (defaults.amsgrad()) throw UsageError(Origin{"optim"}, "ApexAdam has no amsgrad. Use torch::optim::AdamW.");
}

at::Tensor ApexAdam::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = detail::loss_of(closure);
  detail::for_gradients<ApexAdamOptions>(*this, [this](const ApexAdamOptions& options, const at::Tensor& parameter) {
    auto& state = detail::moment_state(*this, parameter);
    const detail::Target target(parameter, state, options.master_weights());
    if (!state.first().defined()) {
      state.first(detail::moment_like(target.weight));
      state.second(detail::moment_like(target.weight));
    }
    state.step(state.step() + 1);
    const auto [beta1, beta2] = options.betas();
    const steps::Adam rule{.lr = options.lr(),
                           .beta1 = beta1,
                           .beta2 = beta2,
                           .eps = options.eps(),
                           .weight_decay = options.weight_decay(),
                           .step = state.step(),
                           .decoupled_decay = options.adam_w_mode(),
                           .bias_correction = options.bias_correction()};
    if (!target.loops) return step_by_operators(target, rule, state);
    steps::step(target.slice(state.first(), state.second()), rule);
  });
  return loss;
}

}  // namespace hasten::optim
