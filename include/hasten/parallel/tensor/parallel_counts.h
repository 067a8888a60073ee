// ParallelCounts: the operators and exchanges of values that are cut over ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace hasten::parallel {

/// Exchanges of one kind.
struct ExchangeCount {
  int64_t calls = 0;
  /// Bytes that this rank has given: its part where parts are gathered or moved, whole values where they are summed.
  int64_t bytes = 0;
};

/// Counts of an axis since it was made.
struct ParallelCounts {
  /// Operators on cut values; exchanges between the ranks.
  int64_t operators = 0, exchanges = 0;
  /// Operators without a rule, by name, which ran on whole values.
  std::map<std::string, int64_t> gathered = {};
  /// The exchanges by kind: "gather", "sum", "reduce_scatter", "move"; of a pipeline "message". Those of backward too.
  std::map<std::string, ExchangeCount> kinds = {};

  /// Returns the bytes of all kinds.
  int64_t bytes() const;
};

/// Returns what has come since `before`, which is an earlier count of the same axis.
ParallelCounts since(const ParallelCounts& now, const ParallelCounts& before);

}  // namespace hasten::parallel
