// Unit plans: which weights stay in memory and which are streamed, when a model is larger than its budget.
//
// A forward is a cyclic pass over the weights, for which the kernel's least-recently-used replacement drops each page
// just before it is needed again. A plan instead keeps a fixed part and streams the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::offload {

struct PlannedUnit {
  std::string name = {};
  int64_t bytes = 0;
};

struct UnitPlan {
  std::vector<bool> streamed = {};  ///< an entry for each unit
  int64_t resident_bytes = 0, streamed_bytes = 0, largest_bytes = 0;
  bool is_streaming() const noexcept { return streamed_bytes > 0; }
};

/// Keeps all units if they fit the budget. Otherwise the first units that fit in budget - 2 * largest unit stay. The
/// others are streamed: one unit is in use while the next is read.
/// Throws: UsageError, with the equation, if the budget is below twice the largest unit.
/// `given_bytes`: the limit as the caller gave it, of which `budget_bytes` are left for the units; -1: the same.
UnitPlan plan_units(const std::vector<PlannedUnit>& units, int64_t budget_bytes, int64_t given_bytes = -1);

/// Bytes up to which neighbouring modules are merged into one unit.
constexpr int64_t kUnitBytes = int64_t{16} << 20;

}  // namespace hasten::offload
