// The leaf modules of a model (hasten/parallel/shard/leaf_modules.h), and the parameters that each of them has.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/plan.h"

namespace hasten::parallel {

/// Returns the whole names of the outermost leaves, in the order of the model.
std::vector<std::string> leaf_names(const torch::nn::Module& model, const WrapPolicy& policy);

/// Returns for each item the number of the leaf that has it; -1 for none.
std::vector<int> leaf_of_items(const torch::nn::Module& model, const WrapPolicy& policy,
                               const std::vector<ShardItem>& items);

}  // namespace hasten::parallel
