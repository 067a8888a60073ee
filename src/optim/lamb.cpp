// See lamb.h.
#include "hasten/optim/lamb.h"

#include <cmath>

#include "optim/moment_optimizer.h"

namespace hasten::optim {
namespace {

void step_by_operators(const detail::Target& target, const steps::Lamb& rule, detail::MomentState& state) {
  at::Tensor gradient = target.gradient * target.factor;
  if (!rule.adam_w_mode && rule.weight_decay != 0) gradient = gradient.add(target.weight, rule.weight_decay);
  state.first().mul_(rule.beta1).add_(gradient, rule.grad_averaging ? 1 - rule.beta1 : 1.0);
  state.second().mul_(rule.beta2).addcmul_(gradient, gradient, 1 - rule.beta2);
  const auto t = static_cast<double>(rule.step);
  const double correction1 = rule.bias_correction ? 1 - std::pow(rule.beta1, t) : 1;
  const double correction2 = rule.bias_correction ? 1 - std::pow(rule.beta2, t) : 1;
  auto update = (state.first() / correction1) / (state.second() / correction2).sqrt_().add_(rule.eps);
  if (rule.adam_w_mode && rule.weight_decay != 0) update.add_(target.weight, rule.weight_decay);
  const auto weight_norm = target.weight.norm(), update_norm = update.norm();
  if (rule.use_nvlamb || rule.weight_decay != 0) {
    // On the device, so that nothing waits for the norms.
    const auto both = (weight_norm > 0).logical_and(update_norm > 0);
    update.mul_(at::where(both, weight_norm / update_norm, at::ones_like(weight_norm)));
  }
  target.weight.add_(update, -rule.lr);
  target.finish();
}

steps::Lamb rule_of(const LambOptions& options, int64_t step) {
  const auto [beta1, beta2] = options.betas();
  return {.lr = options.lr(),
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = options.eps(),
          .weight_decay = options.weight_decay(),
          .step = step,
          .bias_correction = options.bias_correction(),
          .adam_w_mode = options.adam_w_mode(),
          .grad_averaging = options.grad_averaging(),
          .use_nvlamb = options.use_nvlamb()};
}

}  // namespace

Lamb::Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups, LambOptions defaults)
    : Optimizer(groups, std::make_unique<LambOptions>(defaults)) {
  detail::require_at_least_0("Lamb", "lr", defaults.lr());
  detail::require_at_least_0("Lamb", "eps", defaults.eps());
  detail::require_at_least_0("Lamb", "weight_decay", defaults.weight_decay());
  detail::require_at_least_0("Lamb", "max_grad_norm", defaults.max_grad_norm());
}

at::Tensor Lamb::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = detail::loss_of(closure);
  double squares = 0;
  detail::for_gradients<LambOptions>(*this, [&](const LambOptions&, const at::Tensor& parameter) {
    squares += detail::squares_of(detail::Target(parameter, detail::moment_state(*this, parameter), false));
  });
  const double norm = std::sqrt(squares);
  detail::for_gradients<LambOptions>(*this, [&](const LambOptions& options, const at::Tensor& parameter) {
    auto& state = detail::moment_state(*this, parameter);
    detail::Target target(parameter, state, false);
    if (!state.first().defined()) {
      state.first(detail::moment_like(target.weight));
      state.second(detail::moment_like(target.weight));
    }
    state.step(state.step() + 1);
    if (options.max_grad_norm() > 0 && norm > options.max_grad_norm()) target.factor = options.max_grad_norm() / norm;
    const auto rule = rule_of(options, state.step());
    if (!target.loops) return step_by_operators(target, rule, state);
    const auto slice = target.slice(state.first(), state.second());
    const auto sums = steps::lamb_moments(slice, rule);
    steps::lamb_apply(slice, rule, steps::lamb_rate(rule, sums));
  });
  return loss;
}

}  // namespace hasten::optim
