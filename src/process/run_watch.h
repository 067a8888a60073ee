// RunWatch: a rank's page and its watch thread (flight/watcher.h), for as long as its Process lasts.
#pragma once

#include <memory>

#include "hasten/core/env.h"
#include "hasten/flight/recorder.h"
#include "hasten/flight/watcher.h"
#include "hasten/process/rank_info.h"

namespace hasten::process {

class RunWatch {
 public:
  /// Starts the watch over the `number`-th Process of this program, by the variables HASTEN_WATCH, HASTEN_HANG_AFTER,
  /// HASTEN_ON_HANG, HASTEN_STACK_SIGNAL and HASTEN_FLIGHT_FD. Null if it is switched off, or if the system has no
  /// memory for the page, which is logged. Throws: UsageError for a variable that cannot be understood.
  static std::shared_ptr<const RunWatch> start(const RankInfo& identity, int number, const Environment& environment);

  RunWatch(std::shared_ptr<flight::Recorder> recorder, flight::WatchOptions options);
  /// The rank has left the run.
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

 private:
  const std::shared_ptr<flight::Recorder> recorder_;
  const flight::Watcher watcher_;
};

}  // namespace hasten::process
