// See plan.h.
#include "hasten/parallel/shard/plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

ShardUnit lay_out(const std::vector<ShardItem>& items, std::vector<size_t> members, int num_owners) {
  ShardUnit unit;
  int64_t end = 0;
  for (const size_t item : members) {
    unit.offsets.push_back(end);
    end = round_up(end + items[item].numel, kShardAlign);
  }
  unit.element_bytes = items[members.front()].element_bytes;
  unit.share = round_up((end + num_owners - 1) / num_owners, kShardAlign);
  unit.items = std::move(members);
  return unit;
}

}  // namespace

int64_t ShardPlan::largest_unit_bytes() const {
  int64_t most = 0;
  for (size_t unit = 0; unit < units.size(); ++unit) most = std::max(most, unit_bytes(unit));
  return most;
}

int64_t ShardPlan::total_bytes() const {
  int64_t total = 0;
  for (size_t unit = 0; unit < units.size(); ++unit) total += unit_bytes(unit);
  return total;
}

ShardPlan plan_shards(const std::vector<ShardItem>& items, const std::vector<std::vector<size_t>>& groups,
                      int num_owners) {
  ShardPlan plan{.num_owners = num_owners, .places = std::vector<ShardPlan::Place>(items.size())};
  std::vector<bool> seen(items.size());
  for (const auto& group : groups) {
    std::map<int, std::vector<size_t>> by_kind;
    for (const size_t item : group) {
      if (item >= items.size() || seen[item]) {
        throw InternalError(Origin{"shard"}, "item ", item, " of ", items.size(), " is in two units.");
      }
      seen[item] = true;
      by_kind[items[item].kind].push_back(item);
    }
    for (auto& [kind, members] : by_kind) {
      for (size_t index = 0; index < members.size(); ++index) {
        plan.places[members[index]] = {plan.units.size(), index};
      }
      plan.units.push_back(lay_out(items, std::move(members), num_owners));
    }
  }
  if (const auto missing = std::find(seen.begin(), seen.end(), false); missing != seen.end()) {
    throw InternalError(Origin{"shard"}, '\'', items[static_cast<size_t>(missing - seen.begin())].name,
                        "' is in no unit.");
  }
  return plan;
}

std::vector<std::vector<size_t>> group_by_size(const std::vector<ShardItem>& items, int64_t unit_bytes) {
  // A bias takes its layer's weight along, even one of unit_bytes: alone it would be one more unit to fill.
  const int64_t small = unit_bytes / 16;
  std::vector<std::vector<size_t>> groups;
  int64_t bytes = 0;
  for (size_t item = items.size(); item-- > 0;) {
    const int64_t more = items[item].numel * items[item].element_bytes;
    if (groups.empty() || (bytes > small && bytes + more > unit_bytes)) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(item);
    bytes += more;
  }
  return groups;
}

std::vector<std::vector<size_t>> gather_leaves(const std::vector<std::vector<size_t>>& groups,
                                               const std::vector<int>& leaves) {
  std::map<int, size_t> place_of;
  std::vector<std::vector<size_t>> gathered;
  for (const auto& group : groups) {
    const size_t own = gathered.size();
    gathered.emplace_back();
    for (const size_t item : group) {
      if (leaves[item] < 0) {
        gathered[own].push_back(item);
        continue;
      }
      const auto [place, is_new] = place_of.emplace(leaves[item], gathered.size());
      if (is_new) gathered.emplace_back();
      gathered[place->second].push_back(item);
    }
  }
  std::erase_if(gathered, [](const auto& group) { return group.empty(); });
  return gathered;
}

ShardInterval owned_interval(const ShardPlan& plan, const std::vector<ShardItem>& items, size_t item, int owner) {
  const auto [unit, index] = plan.places[item];
  const int64_t share = plan.units[unit].share, offset = plan.units[unit].offsets[index];
  const int64_t begin = std::clamp<int64_t>(owner * share - offset, 0, items[item].numel);
  const int64_t end = std::clamp<int64_t>((owner + 1) * share - offset, 0, items[item].numel);
  return {begin, std::max(begin, end)};
}

std::vector<int> deal_whole(const std::vector<ShardItem>& items, int num_owners) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].numel > items[b].numel; });
  std::vector<int64_t> load(static_cast<size_t>(num_owners));
  std::vector<int> owners(items.size());
  for (const size_t item : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += items[item].numel;
    owners[item] = static_cast<int>(least - load.begin());
  }
  return owners;
}

}  // namespace hasten::parallel
