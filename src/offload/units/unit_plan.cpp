// See unit_plan.h.
#include "offload/units/unit_plan.h"

#include <algorithm>

#include "hasten/core/error.h"

namespace hasten::offload {

UnitPlan plan_units(const std::vector<PlannedUnit>& units, int64_t budget_bytes, int64_t given_bytes) {
  UnitPlan plan;
  plan.streamed.assign(units.size(), false);
  int64_t total = 0;
  const PlannedUnit* largest = nullptr;
  for (const PlannedUnit& unit : units) {
    total += unit.bytes;
    if (largest == nullptr || unit.bytes > largest->bytes) largest = &unit;
  }
  plan.largest_bytes = largest == nullptr ? 0 : largest->bytes;
  plan.resident_bytes = total;
  if (total <= budget_bytes) return plan;
  if (budget_bytes < 2 * plan.largest_bytes) {
    throw UsageError(
        Origin{"offload"}, "the limit of ", given_bytes < 0 ? budget_bytes : given_bytes, " bytes",
        given_bytes <= budget_bytes ? "" : text(", of which tensors that stay in memory leave ", budget_bytes, ","),
        " is below 2 * ", plan.largest_bytes, " = ", 2 * plan.largest_bytes, " bytes, twice the largest unit '",
        largest->name,
        "': one unit is in use while the next is read. Raise max_memory for \"cpu\", or take its class out of "
        "no_split_module_classes.");
  }
  int64_t left = budget_bytes - 2 * plan.largest_bytes;
  plan.resident_bytes = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    plan.streamed[i] = plan.streamed_bytes > 0 || units[i].bytes > left;
    if (plan.streamed[i]) {
      plan.streamed_bytes += units[i].bytes;
    } else {
      plan.resident_bytes += units[i].bytes;
      left -= units[i].bytes;
    }
  }
  return plan;
}

}  // namespace hasten::offload
