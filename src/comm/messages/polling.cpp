// See polling.h.
#include "comm/messages/polling.h"

#include <algorithm>

#include "comm/connecting/counter.h"

namespace hasten::comm {

PollingRecord::Duration::rep PollingRecord::pause(Time now, Count& length) {
  const Duration::rep mine = length.load(std::memory_order_relaxed);
  const Duration::rep end = (now + Duration(mine)).time_since_epoch().count();
  next_.store(end, std::memory_order_relaxed);
  length.store(std::min<Duration::rep>(2 * mine, kLongestPause.count()), std::memory_order_relaxed);
  return end;
}

void PollingRecord::missed(Time now) {
  pause(now, after_miss_);
}

void PollingRecord::interrupted(Time now) {
  const Duration polled = now.time_since_epoch() - Duration(resumed_.load(std::memory_order_relaxed));
  const Duration last = Duration(after_interruption_.load(std::memory_order_relaxed)) / 2;
  if (polled > 8 * last) after_interruption_.store(kPauseOfInterruption.count(), std::memory_order_relaxed);
  resumed_.store(pause(now, after_interruption_), std::memory_order_relaxed);
}

Polling::Polling() : has_cores_(shared::num_cores() > 1) {}

void Polling::relax() {
  shared::pause_or_yield(false);
}

}  // namespace hasten::comm
