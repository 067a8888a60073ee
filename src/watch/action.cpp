// The work of a profiler in a step; see profile_options.h.
#include "hasten/core/error.h"
#include "hasten/watch/profile_options.h"

namespace hasten::watch {

ProfilerAction action(const ProfileSchedule& schedule, int64_t step) {
  const bool is_negative =
      schedule.wait < 0 || schedule.warmup < 0 || schedule.repeat < 0 || schedule.skip_first < 0 || step < 0;
  if (is_negative || schedule.active < 1) {
    throw UsageError({"watch"}, "a profile's schedule of wait ", schedule.wait, ", warmup ", schedule.warmup,
                     ", active ", schedule.active, ", repeat ", schedule.repeat, ", skip_first ", schedule.skip_first,
                     " in step ", step, "; expected numbers of 0 and more, and an active of 1 and more.");
  }
  if (step < schedule.skip_first) return ProfilerAction::kNone;
  step -= schedule.skip_first;
  if (schedule.skip_first_wait) step += schedule.wait;
  const int64_t cycle = schedule.wait + schedule.warmup + schedule.active;
  if (schedule.repeat > 0 && step / cycle >= schedule.repeat) return ProfilerAction::kNone;
  const int64_t place = step % cycle;
  if (place < schedule.wait) return ProfilerAction::kNone;
  if (place < schedule.wait + schedule.warmup) return ProfilerAction::kWarmup;
  return place + 1 == cycle ? ProfilerAction::kRecordAndSave : ProfilerAction::kRecord;
}

}  // namespace hasten::watch
