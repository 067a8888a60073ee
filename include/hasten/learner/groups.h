// Layer groups: the lists of parameters that get their own learning rates and are frozen together.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hasten/learner/hypers.h"

namespace hasten::learner {

/// Lists of a module's parameters, one list a layer group, from the input's side to the output's.
using Splitter = std::function<std::vector<std::vector<at::Tensor>>(torch::nn::Module& module)>;

/// Returns all parameters that require gradients, as one group.
Splitter one_group();
/// Returns the direct children by index: child i belongs to the last group whose first child is at most i.
/// `child_groups({0, 2})`: children 0 and 1, then the others.
/// Throws: UsageError, when it splits, for a group without children.
Splitter child_groups(std::vector<size_t> first_children);
/// Returns all parameters of the modules below a name each: `named_groups({"body", "head"})`.
/// Throws: UsageError, when it splits, for an unknown name.
Splitter named_groups(std::vector<std::string> names);

/// A group of layers.
struct LayerGroup {
  std::string name = {};
  std::vector<at::Tensor> parameters = {};
  /// The index in `parameters` decides two things: whether weight decay applies, and whether the parameter trains
  /// though its group is frozen.
  std::vector<bool> decays = {}, always_trains = {};
};

struct GroupOptions {
  /// Weight decay also for norm layers and for members named `bias`.
  bool wd_bn_bias = false;
  /// Norm layers go on training in frozen groups.
  bool train_bn = true;
};

/// Splits a module. Norm layers are BatchNorm, InstanceNorm and LayerNorm, as fastai has them.
/// Throws: UsageError for a parameter in no group or in two, naming it; for no parameter at
/// all.
std::vector<LayerGroup> layer_groups(torch::nn::Module& module, const Splitter& splitter, const GroupOptions& options);

/// The optimizer's groups for layer groups, and where each layer group is found among them.
struct OptimizerGroups {
  std::vector<torch::optim::OptimizerParamGroup> groups = {};
  std::vector<HyperGroup> places = {};
};
OptimizerGroups optimizer_groups(const std::vector<LayerGroup>& groups);

/// Sets requires_grad: off for groups before `first`, except norm layers that always train.
void freeze_groups(const std::vector<LayerGroup>& groups, size_t first);

}  // namespace hasten::learner
