// Learning rate and momentum of an optimizer's parameter groups, whichever of libtorch's optimizers it is.
//
// OptimizerOptions has the rate. Momentum is in the options of each optimizer (SGD, RMSprop). Adam and AdamW have beta1
// in its place, as in PyTorch's CyclicLR and OneCycleLR.
#pragma once

#include <torch/optim/optimizer.h>

#include <string_view>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::optim::detail {

std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer);
void set_learning_rate(torch::optim::Optimizer& optimizer, size_t group, double rate);

bool has_momentum(torch::optim::Optimizer& optimizer);
void set_momentum(torch::optim::Optimizer& optimizer, size_t group, double value);
/// Refuses an optimizer that has neither momentum nor betas.
void require_momentum(torch::optim::Optimizer& optimizer, std::string_view scheduler);

/// "[optim] StepLR: step_size = 0; expected at least 1."
template <class Value>
void require(bool good, std::string_view scheduler, std::string_view option, const Value& value,
             std::string_view expected) {
  if (good) return;
  throw UsageError(Origin{"optim"}, scheduler, ": ", option, " = ", value, "; expected ", expected, ".");
}

}  // namespace hasten::optim::detail
