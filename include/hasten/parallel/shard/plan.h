// ShardPlan: which parameters form a unit, and which rank owns which elements of each.
//
// Pure. The elements of a unit's parameters lie one behind the other, each parameter from a multiple of 64 elements on.
// The whole is cut into one equal part a rank, again at multiples of 64. Vector kernels then round a slice as they
// round the whole tensor. So a step on slices gives the bits of a step on the whole. This is ZeRO's partition, with
// FSDP's units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::parallel {

/// Elements from `begin` up to, not including, `end` of a flat parameter.
struct ShardInterval {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const noexcept { return end - begin; }
  bool operator==(const ShardInterval&) const = default;
};

struct ShardItem {
  std::string name = {};
  int64_t numel = 0;
  int64_t element_bytes = 4;
  /// Parameters of different kinds (dtypes) are not put into one unit.
  int kind = 0;
};

struct ShardUnit {
  /// Indices of items, and the element at which each begins.
  std::vector<size_t> items = {};
  std::vector<int64_t> offsets = {};
  /// Elements of one rank's part; all parts together hold share * num_owners elements.
  int64_t share = 0;
  int64_t element_bytes = 4;
};

/// Parts begin at multiples of this many elements.
inline constexpr int64_t kShardAlign = 64;

struct ShardPlan {
  std::vector<ShardUnit> units = {};
  int num_owners = 1;

  /// The unit of an item and its place there; every item has one.
  struct Place {
    size_t unit = 0;
    size_t index = 0;
  };
  std::vector<Place> places = {};

  int64_t unit_numel(size_t unit) const { return units[unit].share * num_owners; }
  int64_t unit_bytes(size_t unit) const { return unit_numel(unit) * units[unit].element_bytes; }
  int64_t largest_unit_bytes() const;
  int64_t total_bytes() const;
};

/// Makes units from `groups`, lists of item indices in the order in which gradients are expected. Items of several
/// kinds in one group are put into a unit each. Every item must be in exactly one group.
/// Throws: InternalError if one is not.
ShardPlan plan_shards(const std::vector<ShardItem>& items, const std::vector<std::vector<size_t>>& groups,
                      int num_owners);

/// Groups in reverse order of the items, cut where one would exceed `unit_bytes`. A group below a sixteenth of that
/// takes the next item in any case.
std::vector<std::vector<size_t>> group_by_size(const std::vector<ShardItem>& items, int64_t unit_bytes);

/// Takes the items of a leaf (`leaves`, one number an item; -1: of none) out of their groups into a group of their own,
/// behind the first of those. Groups that are left empty go.
std::vector<std::vector<size_t>> gather_leaves(const std::vector<std::vector<size_t>>& groups,
                                               const std::vector<int>& leaves);

/// Returns the elements of an item that an owner (0 to num_owners - 1) steps. Empty if it owns none.
ShardInterval owned_interval(const ShardPlan& plan, const std::vector<ShardItem>& items, size_t item, int owner);

/// Deals whole items to owners, the largest first, each to the owner with the least so far. It is for optimizers that
/// need whole parameters.
std::vector<int> deal_whole(const std::vector<ShardItem>& items, int num_owners);

}  // namespace hasten::parallel
