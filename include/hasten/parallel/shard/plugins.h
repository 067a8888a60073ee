// From settings of FSDP and DeepSpeed to ShardOptions, and from unit rules to a module's units.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "hasten/parallel/shard/options.h"
#include "hasten/plan/deepspeed_config.h"
#include "hasten/plan/fsdp_plugin.h"
#include "hasten/plan/wrap_policy.h"

namespace hasten::parallel {

/// Returns the options for the settings. Options that they do not name (init, shard_over, hidden_size) come from
/// `base`.
/// Collective: no. Blocks: no. Throws: nothing.
ShardOptions shard_options(const plan::FsdpSettings& settings, ShardOptions base);

/// Returns the same of a DeepSpeed configuration. Throws: UsageError as plan::require_supported.
ShardOptions shard_options(const plan::ResolvedDeepSpeed& resolved, const plan::DeepSpeedConfig& config,
                           ShardOptions base);

/// Returns a module as the unit rules see it. Collective: no. Blocks: no. Throws: nothing.
plan::WrapModule module_tree(const torch::nn::Module& module);

/// Returns the units of a module by WrapRule kTransformer or kSize, as lists of parameters' names in the model's order.
/// The root's comes first.
/// Collective: no. Blocks: no. Throws: UsageError as plan::plan_units.
std::vector<std::vector<std::string>> wrap_units(const torch::nn::Module& module, const WrapPolicy& policy,
                                                 const std::vector<std::string>& ignored);

/// Whole names of modules and parameters that `patterns` mean: exact names, or ECMAScript patterns that a module's
/// whole name matches. Collective: no. Blocks: no. Throws: UsageError for one that matches nothing or is no pattern.
std::vector<std::string> ignored_names(const torch::nn::Module& module, const std::vector<std::string>& patterns);

}  // namespace hasten::parallel
