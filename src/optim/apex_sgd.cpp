// See apex_sgd.h.
#include "hasten/optim/apex_sgd.h"

#include "optim/moment_optimizer.h"

namespace hasten::optim {
namespace {

void step_by_operators(const detail::Target& target, const steps::Sgd& rule, const at::Tensor& buffer) {
  at::Tensor update = target.gradient;
  if (!rule.decay_after_momentum && rule.weight_decay != 0) update = update.add(target.weight, rule.weight_decay);
  if (rule.momentum != 0) {
    if (rule.is_first_step) {
      buffer.copy_(update);
    } else {
      buffer.mul_(rule.momentum).add_(update, 1 - rule.dampening);
    }
    update = rule.nesterov ? update.add(buffer, rule.momentum) : buffer;
  }
  if (rule.decay_after_momentum && rule.weight_decay != 0) update = update.add(target.weight, rule.weight_decay);
  target.weight.add_(update, -rule.lr);
  target.finish();
}

}  // namespace

ApexSgd::ApexSgd(const std::vector<torch::optim::OptimizerParamGroup>& groups, ApexSgdOptions defaults)
    : Optimizer(groups, std::make_unique<ApexSgdOptions>(defaults)) {
  detail::require_at_least_0("ApexSgd", "lr", defaults.lr());
  detail::require_at_least_0("ApexSgd", "momentum", defaults.momentum());
  detail::require_at_least_0("ApexSgd", "weight_decay", defaults.weight_decay());
  if (defaults.nesterov() && (defaults.momentum() <= 0 || defaults.dampening() != 0)) {
    throw UsageError(Origin{"optim"}, "ApexSgd: nesterov with momentum = ", defaults.momentum(),
                     " and dampening = ", defaults.dampening(), "; expected momentum above 0 and dampening 0.");
  }
}

at::Tensor ApexSgd::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = detail::loss_of(closure);
  detail::for_gradients<ApexSgdOptions>(*this, [this](const ApexSgdOptions& options, const at::Tensor& parameter) {
    auto& state = detail::moment_state(*this, parameter);
    const detail::Target target(parameter, state, false);
    if (!state.first().defined() && options.momentum() != 0) state.first(detail::moment_like(target.weight));
    state.step(state.step() + 1);
    const steps::Sgd rule{.lr = options.lr(),
                          .momentum = options.momentum(),
                          .dampening = options.dampening(),
                          .weight_decay = options.weight_decay(),
                          .nesterov = options.nesterov(),
                          .is_first_step = state.step() == 1,
                          .decay_after_momentum = options.wd_after_momentum()};
    if (!target.loops) return step_by_operators(target, rule, state.first());
    steps::step(target.slice(state.first()), rule);
  });
  return loss;
}

}  // namespace hasten::optim
