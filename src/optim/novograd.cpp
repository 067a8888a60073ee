// See novograd.h.
#include "hasten/optim/novograd.h"

#include <cmath>

#include "optim/moment_optimizer.h"

namespace hasten::optim {
namespace {

void step_by_operators(const detail::Target& target, const steps::NovoGrad& rule, detail::MomentState& state) {
  const auto t = static_cast<double>(rule.step);
  const double correction1 = rule.bias_correction ? 1 - std::pow(rule.beta1, t) : 1;
  const double correction2 = rule.bias_correction ? std::sqrt(1 - std::pow(rule.beta2, t)) : 1;
  const double denominator = state.moment() / correction2 + rule.eps;
  at::Tensor gradient = target.gradient;
  if (rule.reg_inside_moment) gradient = (gradient / denominator).add_(target.weight, rule.weight_decay);
  state.first().mul_(rule.beta1).add_(gradient, rule.grad_averaging ? 1 - rule.beta1 : 1.0);
  auto update = state.first() / correction1;
  if (!rule.reg_inside_moment) update.div_(denominator).add_(target.weight, rule.weight_decay);
  target.weight.add_(update, -rule.lr);
  target.finish();
}

}  // namespace

NovoGrad::NovoGrad(const std::vector<torch::optim::OptimizerParamGroup>& groups, NovoGradOptions defaults)
    : Optimizer(groups, std::make_unique<NovoGradOptions>(defaults)) {
  detail::require_at_least_0("NovoGrad", "lr", defaults.lr());
  detail::require_at_least_0("NovoGrad", "eps", defaults.eps());
  detail::require_at_least_0("NovoGrad", "weight_decay", defaults.weight_decay());
  if (defaults.norm_type() != 0 && defaults.norm_type() != 2) {
    throw UsageError(Origin{"optim"}, "NovoGrad: norm_type = ", defaults.norm_type(),
                     "; expected 2, or 0 for the largest "
                     "magnitude.");
  }
}

at::Tensor NovoGrad::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = detail::loss_of(closure);
  detail::for_gradients<NovoGradOptions>(*this, [this](const NovoGradOptions& options, const at::Tensor& parameter) {
    auto& state = detail::moment_state(*this, parameter);
    const detail::Target target(parameter, state, false);
    if (!state.first().defined()) state.first(detail::moment_like(target.weight));
    state.step(state.step() + 1);
    const auto [beta1, beta2] = options.betas();
    const steps::NovoGrad rule{.lr = options.lr(),
                               .beta1 = beta1,
                               .beta2 = beta2,
                               .eps = options.eps(),
                               .weight_decay = options.weight_decay(),
                               .step = state.step(),
                               .bias_correction = options.bias_correction(),
                               .grad_averaging = options.grad_averaging(),
                               .reg_inside_moment = options.reg_inside_moment()};
    const auto kind = options.norm_type() == 2 ? steps::NovoGradNorm::kTwo : steps::NovoGradNorm::kInfinity;
    const double norm =
        kind == steps::NovoGradNorm::kTwo ? std::sqrt(detail::squares_of(target)) : detail::largest_of(target);
    const double before = state.step() > 1 ? state.moment() : options.init_zero() ? 0.0 : norm;
    state.moment(steps::novograd_moment(rule, kind, before, norm));
    if (!target.loops) return step_by_operators(target, rule, state);
    steps::step(target.slice(state.first()), rule, state.moment());
  });
  return loss;
}

}  // namespace hasten::optim
