// Unit layout: which of a model's items form a unit together, by the rules of WrapPolicy. Reads no memory.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/plan.h"

namespace hasten::parallel::shard {

/// Returns groups of items in the order in which their gradients come: the last ones first. `ignored`: names of modules
/// and parameters that are in no unit. Throws: UsageError for a rule that matches nothing.
std::vector<std::vector<size_t>> group_items(const torch::nn::Module& module, const ShardOptions& options,
                                             const std::vector<ShardItem>& items,
                                             const std::vector<std::string>& ignored);

/// Cuts each group into those that `apart` marks and the others.
std::vector<std::vector<size_t>> split_groups(const std::vector<std::vector<size_t>>& groups,
                                              const std::vector<bool>& apart);

}  // namespace hasten::parallel::shard
