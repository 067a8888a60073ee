// See balance.h. Two passes over (stages, items): the smallest maximum, then the smallest sum of squares below it.
#include "hasten/plan/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_costs(const std::vector<double>& costs, int stages) {
  if (stages < 1) throw UsageError({"plan"}, "stages is ", stages, "; expected at least 1.");
  if (costs.size() < static_cast<size_t>(stages))
    throw UsageError({"plan"}, count_text(costs.size(), "item"), " cannot fill ", count_text(stages, "stage"),
                     ". Ask for ", count_text(costs.size(), "stage"),
                     " at most.");
  for (const double cost : costs) {
    if (!std::isfinite(cost) || cost < 0)
      throw UsageError({"plan"}, "an item costs ", cost, "; expected finite numbers of at least 0.");
  }
}

}  // namespace

std::vector<size_t> balance(const std::vector<double>& costs, int stages) {
  check_costs(costs, stages);
  const size_t n = costs.size(), count = static_cast<size_t>(stages);
  std::vector<double> sums(n + 1);
  for (size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  // maximum[i]: of the first i items in as many stages as the outer loop has counted.
  std::vector<double> maximum(sums.begin(), sums.end());
  for (size_t k = 2; k <= count; ++k) {
    for (size_t i = n; i >= k; --i) {
      double best = kInfinity;
      // From the back on: once the last stage alone is above the best, longer ones are as well.
      for (size_t j = i - 1; j >= k - 1; --j) {
        if (sums[i] - sums[j] > best) break;
        best = std::min(best, std::max(maximum[j], sums[i] - sums[j]));
      }
      maximum[i] = best;
    }
  }
  // Sums of differences round; a stage of the maximum must not be refused for that.
  const double limit = maximum[n] * (1 + 1e-12);
  std::vector<std::vector<size_t>> from(count + 1, std::vector<size_t>(n + 1));
  std::vector<double> squares(n + 1, kInfinity), next;
  squares[0] = 0;
  for (size_t k = 1; k <= count; ++k) {
    next.assign(n + 1, kInfinity);
    for (size_t i = k; i <= n; ++i) {
      for (size_t j = i; j-- > k - 1 && sums[i] - sums[j] <= limit;) {
        const double stage = sums[i] - sums[j], total = squares[j] + stage * stage;
        if (total < next[i]) next[i] = total, from[k][i] = j;
      }
    }
    squares.swap(next);
  }
  std::vector<size_t> begins(count);
  for (size_t k = count, end = n; k > 0; --k) begins[k - 1] = end = from[k][end];
  return begins;
}

double largest_stage(const std::vector<double>& costs, const std::vector<size_t>& begins) {
  double largest = 0;
  for (size_t k = 0; k < begins.size(); ++k) {
    const size_t end = k + 1 < begins.size() ? begins[k + 1] : costs.size();
    double stage = 0;
    for (size_t i = begins[k]; i < end; ++i) stage += costs[i];
    largest = std::max(largest, stage);
  }
  return largest;
}

}  // namespace hasten::plan
