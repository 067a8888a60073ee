// How models of known classes are cut, where a program gives no plan.
//
// A table by class name, so that a rule holds wherever such a module stands in a model. For other modules nothing is
// guessed.
#pragma once

#include <torch/nn/module.h>

#include "hasten/parallel/tensor/tensor_plan.h"

namespace hasten::parallel::tensor {

/// Returns a plan with whole names for the modules of known classes in this one; empty if there are none. Names that a
/// module does not have (a head that it lacks) are left out. Throws: UsageError for numbers
/// of heads that `num_parts` does not divide.
TensorPlan plan_by_classes(const torch::nn::Module& module, const std::vector<PlanParameter>& parameters,
                           int num_parts);

}  // namespace hasten::parallel::tensor
