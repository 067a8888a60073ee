// RunWatch: a rank's page and its watch thread (flight/watcher.h), for as long as its Process lasts.
#pragma once

#include <memory>
#include <optional>

#include "hasten/core/env.h"
#include "hasten/flight/recorder.h"
#include "hasten/flight/watcher.h"
#include "hasten/process/rank_info.h"

namespace hasten::process {

class RunWatch {
 public:
  /// The variables HASTEN_WATCH, HASTEN_HANG_AFTER, HASTEN_ON_HANG and HASTEN_STACK_SIGNAL. Nothing if the watch is
  /// switched off. To be read before ranks meet, so that a wrong value ends all of them at once.
  /// Throws: UsageError for a variable that cannot be understood.
  static std::optional<flight::WatchOptions> read_options(const Environment& environment);

  /// Starts the watch over the `number`-th Process of this program, on the page of HASTEN_FLIGHT_FD if there is one.
  /// Null without options, or if the system has no memory for the page, which is logged.
  static std::shared_ptr<const RunWatch> start(const RankInfo& identity, int number,
                                               std::optional<flight::WatchOptions> options,
                                               const Environment& environment);

  /// As above, over a world of one, which has a page only under `hasten launch`. A second Process beside the first
  /// shares its watch.
  static std::shared_ptr<const RunWatch> start_alone(const RankInfo& identity,
                                                     std::optional<flight::WatchOptions> options,
                                                     const Environment& environment);

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
