// Schedules: values by the position in a fit, 0 at its start and 1 at its end (fastai's callback.schedule).
//
// Positions are double throughout; fastai rounds them to float32 in combined schedules.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace hasten::learner {

/// A value at a position in [0, 1].
using Schedule = std::function<double(double)>;
/// By hyper-parameter; one schedule for all layer groups, or one a group.
using Schedules = std::map<std::string, std::vector<Schedule>>;

/// start + position * (end - start).
Schedule sched_lin(double start, double end);
/// Half a cosine from start to end.
Schedule sched_cos(double start, double end);
/// start everywhere.
Schedule sched_no(double start, double end = 0);
/// start * (end / start)^position. Throws: UsageError unless both have one sign and are not
/// 0.
Schedule sched_exp(double start, double end);
/// start + (end - start) * position^power.
Schedule sched_poly(double start, double end, double power);

/// Schedule i on the next pcts[i] of the way. Throws: UsageError if pcts do not sum to 1,
/// are below 0, or are not one for each schedule.
Schedule combine(const std::vector<double>& pcts, const std::vector<Schedule>& schedules);
/// start to middle on the first pct, then middle to end, both as cosines. Throws:
/// UsageError for a pct outside [0, 1].
Schedule combined_cos(double pct, double start, double middle, double end);

}  // namespace hasten::learner
