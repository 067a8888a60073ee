// See leaf_units.h.
#include "parallel/shard/leaf_units.h"

#include <algorithm>

#include "hasten/settings/wrap_policy.h"

namespace hasten::parallel {
namespace {

bool is_leaf(const std::string& name, const torch::nn::Module& module, const WrapPolicy& policy) {
  const auto any = [](const std::vector<std::string>& all, const auto& fits) {
    return std::any_of(all.begin(), all.end(), fits);
  };
  return any(policy.leaf_classes,
             [&](const std::string& requested) { return plan::class_matches(module.name(), requested); }) ||
         any(policy.leaf_names, [&](const std::string& requested) { return name == requested; }) ||
         any(policy.leaf_suffixes, [&](const std::string& requested) { return name.ends_with(requested); });
}

}  // namespace

std::vector<std::string> leaf_names(const torch::nn::Module& model, const WrapPolicy& policy) {
  std::vector<std::string> names;
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const bool is_below = !names.empty() && item.key().starts_with(names.back() + '.');
    if (!is_below && is_leaf(item.key(), *item.value(), policy)) names.push_back(item.key());
  }
  return names;
}

std::vector<int> leaf_of_items(const torch::nn::Module& model, const WrapPolicy& policy,
                               const std::vector<ShardItem>& items) {
  std::vector<int> leaves(items.size(), -1);
  const auto names = leaf_names(model, policy);
  for (size_t item = 0; item < items.size(); ++item) {
    const auto leaf = std::find_if(names.begin(), names.end(),
                                   [&](const std::string& name) { return items[item].name.starts_with(name + '.'); });
    if (leaf != names.end()) leaves[item] = static_cast<int>(leaf - names.begin());
  }
  return leaves;
}

}  // namespace hasten::parallel
