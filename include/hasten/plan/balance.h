// Balanced stages: cuts a row of items into contiguous stages, so that the most expensive stage costs least.
#pragma once

#include <cstddef>
#include <vector>

namespace hasten::plan {

/// Returns the first item of each stage, ascending, beginning with 0. No stage is empty. Among the cuts of the smallest
/// maximum it is one whose stages are most even (the sum of squares is smallest).
/// Throws: UsageError for fewer items than stages, stages below 1, and costs that are negative or not finite.
std::vector<size_t> balance(const std::vector<double>& costs, int stages);

/// Returns the cost of the most expensive stage. `begins` is in the form of balance's result.
double largest_stage(const std::vector<double>& costs, const std::vector<size_t>& begins);

}  // namespace hasten::plan
