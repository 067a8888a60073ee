// Units of a module by the rules of FSDP's wrap policies, and the modules that a program leaves out.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "hasten/parallel/shard/options.h"
#include "hasten/settings/wrap_policy.h"

namespace hasten::parallel {

/// Returns a module as the unit rules see it.
plan::WrapModule module_tree(const torch::nn::Module& module);

/// Returns the units of a module by WrapRule kTransformer or kSize, as lists of parameters' names in the model's order.
/// The root's comes first.
/// Throws: UsageError as plan::plan_units.
std::vector<std::vector<std::string>> wrap_units(const torch::nn::Module& module, const WrapPolicy& policy,
                                                 const std::vector<std::string>& ignored);

/// Whole names of modules and parameters that `patterns` mean: exact names, or ECMAScript patterns that a module's
/// whole name matches. Throws: UsageError for one that matches nothing or is no pattern.
std::vector<std::string> ignored_names(const torch::nn::Module& module, const std::vector<std::string>& patterns);

}  // namespace hasten::parallel
