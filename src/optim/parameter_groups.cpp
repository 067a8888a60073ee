// Rates and momenta of parameter groups; see parameter_groups.h.
#include "optim/parameter_groups.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <tuple>

namespace hasten::optim::detail {
namespace {

using torch::optim::OptimizerOptions;

/// Returns the group's momentum after it was set to `value`, if one is given. Returns nothing if the options have
/// neither momentum nor betas.
std::optional<double> access(OptimizerOptions& options, std::optional<double> value) {
  const auto plain = [&](auto& known) {
    if (value) known.momentum(*value);
    return known.momentum();
  };
  const auto adam = [&](auto& known) {
    if (value) known.betas(std::make_tuple(*value, std::get<1>(known.betas())));
    return std::get<0>(known.betas());
  };
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return plain(*sgd);
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) return plain(*rmsprop);
  if (auto* adam_options = dynamic_cast<torch::optim::AdamOptions*>(&options)) return adam(*adam_options);
  if (auto* adamw_options = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return adam(*adamw_options);
  return {};
}

}  // namespace

std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_learning_rate(torch::optim::Optimizer& optimizer, size_t group, double rate) {
  optimizer.param_groups().at(group).options().set_lr(rate);
}

bool has_momentum(torch::optim::Optimizer& optimizer) {
  auto& groups = optimizer.param_groups();
  return !groups.empty() && access(groups[0].options(), {}).has_value();
}

void set_momentum(torch::optim::Optimizer& optimizer, size_t group, double value) {
  access(optimizer.param_groups().at(group).options(), value);
}

void require_momentum(torch::optim::Optimizer& optimizer, std::string_view scheduler) {
  if (has_momentum(optimizer)) return;
  throw UsageError(Origin{"optim"}, scheduler,
                   ": cycle_momentum = true, but the optimizer has neither momentum nor betas; expected SGD, "
                   "RMSprop, Adam or AdamW. Set cycle_momentum = false.");
}

}  // namespace hasten::optim::detail
