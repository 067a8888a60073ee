// See schedule.h.
#include "hasten/learner/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "hasten/core/error.h"

namespace hasten::learner {

Schedule sched_lin(double start, double end) {
  return [=](double position) { return start + position * (end - start); };
}

Schedule sched_cos(double start, double end) {
  return [=](double position) { return start + (1 + std::cos(std::numbers::pi * (1 - position))) * (end - start) / 2; };
}

Schedule sched_no(double start, double /*end*/) {
  return [=](double) { return start; };
}

Schedule sched_exp(double start, double end) {
  if (!(start * end > 0)) {
    throw UsageError(
        Origin{"learner"}, "sched_exp from ", start, " to ", end,
        ": an exponential has no way through 0; expected two numbers of one sign. Use sched_lin or sched_cos.");
  }
  return [=](double position) { return start * std::pow(end / start, position); };
}

Schedule sched_poly(double start, double end, double power) {
  return [=](double position) { return start + (end - start) * std::pow(position, power); };
}

Schedule combine(const std::vector<double>& pcts, const std::vector<Schedule>& schedules) {
  const double sum = std::accumulate(pcts.begin(), pcts.end(), 0.0);
  const bool negative = std::any_of(pcts.begin(), pcts.end(), [](double pct) { return !(pct >= 0); });
  if (pcts.size() != schedules.size() || pcts.empty() || negative || !(std::abs(sum - 1) < 1e-9)) {
    throw UsageError(Origin{"learner"}, "combine of ", schedules.size(), " schedules on the parts ", join(pcts),
                     " with sum ", sum, "; expected one part for each schedule, none below 0, that sum to 1.");
  }
  std::vector<double> starts{0.0};
  for (const double pct : pcts) starts.push_back(starts.back() + pct);
  return [=](double position) {
    // Sums of parts are off by a few roundings; a start counts as reached at once.
    size_t part = 0;
    while (part + 1 < schedules.size() && position + 1e-12 >= starts[part + 1]) ++part;
    const double length = starts[part + 1] - starts[part];
    return schedules[part](length > 0 ? std::clamp((position - starts[part]) / length, 0.0, 1.0) : 0.0);
  };
}

Schedule combined_cos(double pct, double start, double middle, double end) {
  return combine({pct, 1 - pct}, {sched_cos(start, middle), sched_cos(middle, end)});
}

}  // namespace hasten::learner
