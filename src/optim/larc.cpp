// See larc.h.
#include "hasten/optim/larc.h"

#include <ATen/ops/where.h>
#include <torch/optim.h>

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/novograd.h"
#include "hasten/optim/steps/optimizer_step.h"

namespace hasten::optim {
namespace {

using torch::optim::OptimizerOptions;

template <class Options>
double* decay_of(OptimizerOptions& options) {
  auto* own = dynamic_cast<Options*>(&options);
  return own == nullptr ? nullptr : &own->weight_decay();
}

double& weight_decay_of(OptimizerOptions& options) {
  for (const auto find :
       {decay_of<torch::optim::SGDOptions>, decay_of<torch::optim::AdamOptions>, decay_of<torch::optim::AdamWOptions>,
        decay_of<torch::optim::AdagradOptions>, decay_of<torch::optim::RMSpropOptions>, decay_of<ApexAdamOptions>,
        decay_of<ApexSgdOptions>, decay_of<LambOptions>, decay_of<NovoGradOptions>}) {
    if (double* found = find(options)) return *found;
  }
  throw UsageError(Origin{"optim"},
                   "Larc around an optimizer whose options have no weight_decay that is known here; expected "
                   "SGD, Adam, AdamW, Adagrad, RMSprop, or one of hasten::optim.");
}

// g = (g + wd p) a, where both norms are above 0; without waiting for the norms.
void adapt(const at::Tensor& parameter, double lr, double decay, const LarcOptions& options) {
  auto& gradient = parameter.mutable_grad();
  const auto weight_norm = parameter.norm(), gradient_norm = gradient.norm();
  auto rate = options.trust_coefficient * weight_norm / (gradient_norm + weight_norm * decay + options.eps);
  if (options.clip) rate = (rate / lr).clamp_max(1);
  const auto adapted = (gradient + decay * parameter) * rate;
  gradient.copy_(at::where((weight_norm > 0).logical_and(gradient_norm > 0), adapted, gradient));
}

}  // namespace

Larc::Larc(torch::optim::Optimizer& optimizer, const LarcOptions& options)
    : Optimizer(optimizer.param_groups(), optimizer.param_groups().at(0).options().clone()),
      optimizer_(&optimizer),
      larc_(options) {
  if (!(options.trust_coefficient > 0) || !(options.eps >= 0)) {
    throw UsageError(Origin{"optim"}, "Larc: trust_coefficient = ", options.trust_coefficient, ", eps = ", options.eps,
                     "; expected above 0 and at least 0.");
  }
}

at::Tensor Larc::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  auto& groups = param_groups();
  auto& inner = optimizer_->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    auto options = groups[i].options().clone();
    const double decay = std::exchange(weight_decay_of(*options), 0.0);
    for (const auto& parameter : groups[i].params()) {
      if (parameter.grad().defined()) adapt(parameter, options->get_lr(), decay, larc_);
    }
    inner.at(i).set_options(std::move(options));
  }
  optimizer_step(*optimizer_);
  for (size_t i = 0; i < groups.size(); ++i) inner.at(i).set_options(groups[i].options().clone());
  return loss;
}

void Larc::load(torch::serialize::InputArchive& archive) {
  optimizer_->load(archive);
  for (size_t i = 0; i < param_groups().size(); ++i) {
    param_groups()[i].set_options(optimizer_->param_groups()[i].options().clone());
  }
}

}  // namespace hasten::optim
