// ParallelCounts: the operators and exchanges of values that are cut over ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hasten::parallel {

/// Counts of an axis since it was made.
struct ParallelCounts {
  /// Operators on cut values; exchanges between the ranks.
  int64_t operators = 0, exchanges = 0;
  /// Operators without a rule, by name, which ran on whole values.
  std::map<std::string, int64_t> gathered = {};
};

}  // namespace hasten::parallel
