// See step_policies.h.
#include "plugins/step_policies.h"

namespace hasten {
namespace {

std::vector<at::Tensor> stepped_parameters(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

}  // namespace

void ClipPolicy::before_step(training::StepContext& context) {
  const double max_norm = limit();
  if (context.skip || was_clipped || max_norm <= 0) return;
  clip(stepped_parameters(context.optimizer), max_norm);
}

void OverflowPolicy::before_step(training::StepContext& context) {
  if (context.skip || !applies() || finite(stepped_parameters(context.optimizer))) return;
  context.skip = true;
  warn();
}

}  // namespace hasten
