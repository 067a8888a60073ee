// See prepared_optimizer.h.
#include "hasten/optim/prepared/prepared_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include <utility>
#include <vector>

namespace hasten::optim {
namespace {

// A factor that no policy has carried into its own step is multiplied into the gradients.
void apply_factor(const training::StepContext& context) {
  if (context.gradient_factor == 1.0) return;
  const at::NoGradGuard no_grad;
  for (const auto& group : context.optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const at::Tensor& gradient = parameter.grad();
      (gradient.is_sparse() ? gradient._values() : gradient).mul_(context.gradient_factor);
    }
  }
}

// The step with the policies around it: before, the step of a policy or the optimizer's own, after.
at::Tensor step_with_policies(torch::optim::Optimizer& optimizer, training::GradientState& gradients,
                              const PreparedOptimizerOptions& options,
                              const torch::optim::Optimizer::LossClosure& closure) {
  const auto policies = gradients.step_policies().of(optimizer);
  training::StepContext context{.optimizer = optimizer, .closure = closure};
  for (const auto& policy : policies) policy->before_step(context);
  bool done = context.skip;
  for (size_t i = 0; !done && i < policies.size(); ++i) done = policies[i]->step(context);
  if (!done) {
    apply_factor(context);
    context.loss = optimizer_step(optimizer, options, closure);
  }
  for (const auto& policy : policies) policy->after_step(context);
  gradients.set_step_was_skipped(optimizer, context.skip);
  return context.loss;
}

}  // namespace

AnyPreparedOptimizer::AnyPreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                           std::shared_ptr<training::GradientState> gradient_state,
                                           const PreparedOptimizerOptions& options)
    : optimizer_(std::move(optimizer)),
      gradient_state_(std::move(gradient_state)),
      options_(options),
      known_(gradient_state_->set_prepared(*optimizer_)) {}

at::Tensor AnyPreparedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) const {
  if (!gradient_state_->sync_gradients()) return {};
  if (!closure && gradient_state_->weighted() && !has_gradients(*optimizer_)) {
    skip_step();
    return {};
  }
  return step_with_policies(*optimizer_, *gradient_state_, options_, closure);
}

void AnyPreparedOptimizer::skip_step() const {
  if (gradient_state_->sync_gradients()) gradient_state_->set_step_was_skipped(*optimizer_, true);
}

void AnyPreparedOptimizer::zero_grad(bool set_to_none) const {
  gradient_state_->optimizers().zero_grad(*optimizer_, gradient_state_->sync_gradients(),
                                          [optimizer = optimizer_, set_to_none] { optimizer->zero_grad(set_to_none); });
}

}  // namespace hasten::optim
