// See prepared_optimizer.h.
#include "hasten/optim/prepared/prepared_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

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

}  // namespace

at::Tensor detail::prepared_step(torch::optim::Optimizer& optimizer, training::GradientState& gradients,
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

}  // namespace hasten::optim
