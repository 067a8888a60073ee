// Leaf modules: modules whose parameters form one unit each (DeepSpeed's set_z3_leaf_modules).
//
// In DeepSpeed a mixture of experts needs them, since ranks that choose other experts would wait for each other. Here a
// rank may use any parameters in any order, and they are a hint for units. ShardOptions::wrap has them; sharded_model.h
// makes the units.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace hasten::parallel {

class Sharding;

/// Makes each module of these classes a leaf in models that are prepared from now on: each class is named as by
/// transformer_cls_names_to_wrap ("MoeBlock", "net::MoeBlockImpl"). `sharding` null: the classes are only looked for.
/// Returns the whole names of the leaves, outermost ones. Accelerate's DeepSpeedPlugin.set_moe_leaf_modules.
/// Collective: no, but to be called alike on all ranks. Throws: UsageError for a class that no module has,
/// with the classes there are.
std::vector<std::string> set_moe_leaf_modules(const std::shared_ptr<Sharding>& sharding, const torch::nn::Module& model,
                                              const std::vector<std::string>& classes);

}  // namespace hasten::parallel
