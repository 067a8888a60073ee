// See groups.h.
#include "hasten/learner/groups.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <map>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"

namespace hasten::learner {
namespace {

namespace nn = torch::nn;

template <class... Types>
bool is_any(const nn::Module& module) {
  return ((dynamic_cast<const Types*>(&module) != nullptr) || ...);
}

bool is_norm(const nn::Module& module) {
  return is_any<nn::BatchNorm1dImpl, nn::BatchNorm2dImpl, nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl,
                nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl, nn::LayerNormImpl>(module);
}

using Keys = std::set<const at::TensorImpl*>;

void collect(const nn::Module& module, bool with_bias, Keys& keys) {
  if (is_norm(module)) {
    for (const auto& parameter : module.parameters()) keys.insert(parameter.unsafeGetTensorImpl());
    return;
  }
  for (const auto& child : module.children()) collect(*child, with_bias, keys);
  if (!with_bias) return;
  const auto own = module.named_parameters(false);
  if (const auto* bias = own.find("bias"); bias != nullptr && bias->defined()) {
    keys.insert(bias->unsafeGetTensorImpl());
  }
}

std::vector<at::Tensor> trainable(const nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad()) result.push_back(parameter);
  }
  return result;
}

std::string group_name(const std::map<const at::TensorImpl*, std::string>& names,
                       const std::vector<at::Tensor>& parameters, size_t i) {
  if (parameters.empty()) return text("group ", i);
  const auto found = names.find(parameters.front().unsafeGetTensorImpl());
  return found == names.end() ? text("group ", i) : text("group ", i, " from ", found->second);
}

}  // namespace

Splitter one_group() {
  return [](nn::Module& module) { return std::vector<std::vector<at::Tensor>>{trainable(module)}; };
}

Splitter child_groups(std::vector<size_t> first_children) {
  return [first_children = std::move(first_children)](nn::Module& module) {
    const auto children = module.children();
    std::vector<std::vector<at::Tensor>> groups(first_children.size());
    for (size_t group = 0; group < first_children.size(); ++group) {
      const size_t end = group + 1 < first_children.size() ? first_children[group + 1] : children.size();
      if (first_children[group] >= std::min(end, children.size())) {
        throw UsageError(Origin{"learner"}, "child_groups: group ", group, " begins at child ", first_children[group],
                         " and holds none; the module has ", children.size(),
                         " children. Give ascending indices below that.");
      }
      for (size_t i = first_children[group]; i < std::min(end, children.size()); ++i) {
        for (const auto& parameter : trainable(*children[i])) groups[group].push_back(parameter);
      }
    }
    return groups;
  };
}

Splitter named_groups(std::vector<std::string> names) {
  return [names = std::move(names)](nn::Module& module) {
    std::vector<std::vector<at::Tensor>> groups;
    for (const auto& name : names) {
      std::vector<std::string> known;
      std::shared_ptr<nn::Module> found;
      for (const auto& child : module.named_modules("", false)) {
        known.push_back(child.key());
        if (child.key() == name) found = child.value();
      }
      if (!found) {
        throw UsageError(Origin{"learner"}, "named_groups: no module '", name, "' in the model",
                         guess_end(name, known));
      }
      groups.push_back(trainable(*found));
    }
    return groups;
  };
}

std::vector<LayerGroup> layer_groups(nn::Module& module, const Splitter& splitter, const GroupOptions& options) {
  std::map<const at::TensorImpl*, std::string> names;
  for (const auto& parameter : module.named_parameters())
    names[parameter.value().unsafeGetTensorImpl()] = parameter.key();
  Keys without_decay, norms, seen;
  if (!options.wd_bn_bias) collect(module, true, without_decay);
  if (options.train_bn) collect(module, false, norms);
  std::vector<LayerGroup> groups;
  const auto lists = splitter(module);
  for (size_t i = 0; i < lists.size(); ++i) {
    LayerGroup group{.name = group_name(names, lists[i], i)};
    for (const auto& parameter : lists[i]) {
      const auto* key = parameter.unsafeGetTensorImpl();
      const auto name = names.find(key);
      if (!seen.insert(key).second || name == names.end()) {
        throw UsageError(Origin{"learner"}, "the splitter gives ",
                         name == names.end() ? "a tensor that is no parameter" : name->second,
                         name == names.end() ? "" : " twice",
                         "; expected each of the model's parameters in exactly one group.");
      }
      group.parameters.push_back(parameter);
      group.decays.push_back(without_decay.count(key) == 0);
      group.always_trains.push_back(norms.count(key) != 0);
    }
    groups.push_back(std::move(group));
  }
  std::vector<std::string> missing;
  for (const auto& parameter : module.named_parameters()) {
    if (parameter.value().requires_grad() && seen.count(parameter.value().unsafeGetTensorImpl()) == 0)
      missing.push_back(parameter.key());
  }
  if (!missing.empty() || seen.empty()) {
    throw UsageError(Origin{"learner"},
                     missing.empty() ? "the model has no parameter that requires gradients"
                                     : "the splitter leaves out " + join(missing),
                     "; expected each of the model's parameters in exactly one group.");
  }
  return groups;
}

OptimizerGroups optimizer_groups(const std::vector<LayerGroup>& groups) {
  OptimizerGroups result;
  for (const auto& group : groups) {
    HyperGroup place{.name = group.name};
    for (const bool decays : {true, false}) {
      std::vector<at::Tensor> parameters;
      for (size_t i = 0; i < group.parameters.size(); ++i) {
        if (group.decays[i] == decays) parameters.push_back(group.parameters[i]);
      }
      if (parameters.empty()) continue;
      (decays ? place.decaying : place.plain) = static_cast<int>(result.groups.size());
      result.groups.emplace_back(std::move(parameters));
    }
    result.places.push_back(std::move(place));
  }
  return result;
}

void freeze_groups(const std::vector<LayerGroup>& groups, size_t first) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].parameters.size(); ++i) {
      groups[g].parameters[i].set_requires_grad(g >= first || groups[g].always_trains[i]);
    }
  }
}

}  // namespace hasten::learner
