// Numbers that loops of the room go by: a batch size of 0 would divide by zero or go on for ever.
#pragma once

#include <cstdint>
#include <string_view>

#include "hasten/core/error.h"

namespace hasten::learner {

/// Returns `value`. Throws: UsageError below `least`.
inline int64_t at_least(int64_t least, std::string_view name, int64_t value) {
  if (value >= least) return value;
  throw UsageError(Origin{"learner"}, name, " = ", value, "; expected at least ", least, ".");
}

}  // namespace hasten::learner
