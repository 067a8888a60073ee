// See unit_layout.h.
#include "parallel/shard/unit_layout.h"

#include <algorithm>
#include <limits>
#include <map>

#include "parallel/shard/leaf_units.h"
#include "parallel/shard/wrap_units.h"

namespace hasten::parallel::shard {
namespace {

// NO_WRAP means a single unit.
int64_t unit_bytes(const ShardOptions& options) {
  const bool one = options.wrap.rule == WrapPolicy::Rule::kNone;
  return one ? std::numeric_limits<int64_t>::max() : options.wrap.unit_bytes;
}

}  // namespace

std::vector<std::vector<size_t>> group_items(const torch::nn::Module& module, const ShardOptions& options,
                                             const std::vector<ShardItem>& items,
                                             const std::vector<std::string>& ignored) {
  const auto rule = options.wrap.rule;
  const bool by_rule = rule == WrapPolicy::Rule::kTransformer || rule == WrapPolicy::Rule::kSize;
  const auto leaves = options.units || rule == WrapPolicy::Rule::kNone ? std::vector<int>(items.size(), -1)
                                                                       : leaf_of_items(module, options.wrap, items);
  if (!options.units && !by_rule) return gather_leaves(group_by_size(items, unit_bytes(options)), leaves);
  std::map<std::string, size_t> left;
  for (size_t item = 0; item < items.size(); ++item) left[items[item].name] = item;
  std::vector<std::vector<size_t>> groups;
  for (const auto& names : options.units ? options.units(module) : wrap_units(module, options.wrap, ignored)) {
    std::vector<size_t> members;
    for (const auto& name : names) {
      const auto found = left.find(name);
      if (found == left.end()) continue;
      members.push_back(found->second);
      left.erase(found);
    }
    if (!members.empty()) groups.push_back(std::move(members));
  }
  std::vector<size_t> rest;
  for (const auto& [name, item] : left) rest.push_back(item);
  if (!rest.empty()) groups.insert(groups.begin(), std::move(rest));
  std::reverse(groups.begin(), groups.end());
  return gather_leaves(groups, leaves);
}

std::vector<std::vector<size_t>> split_groups(const std::vector<std::vector<size_t>>& groups,
                                              const std::vector<bool>& apart) {
  std::vector<std::vector<size_t>> split;
  for (const auto& group : groups) {
    std::vector<size_t> others, marked;
    for (const size_t item : group) (apart[item] ? marked : others).push_back(item);
    for (auto* part : {&others, &marked}) {
      if (!part->empty()) split.push_back(std::move(*part));
    }
  }
  return split;
}

}  // namespace hasten::parallel::shard
