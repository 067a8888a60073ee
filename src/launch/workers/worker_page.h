// WorkerPage: the page of a worker (flight/page.h) that the launcher makes and keeps, so that it can be read when the
// worker is dead.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/memory_file.h"
#include "hasten/launch/base/worker_place.h"

namespace hasten::launcher {

class WorkerPage {
 public:
  explicit WorkerPage(MemoryFile file) : file_(std::move(file)) {}

  /// For the worker's process: announces it, leaves the file open for the program, and returns the environment with its
  /// descriptor (HASTEN_FLIGHT_FD).
  Environment hand_over(const WorkerPlace& place, const Environment& environment) const;

  /// Returns the rank's place, "step 301, waits in all_reduce 1204"; "" if no Process of hasten's has taken the page.
  std::string where() const;

  /// Returns true if a watch thread has killed it because of a hang (--on_hang kill).
  bool ended_by_watch() const;

  /// Returns the time at which its Process ended in order; none before that.
  std::optional<std::chrono::steady_clock::time_point> left_at() const;

  /// Returns the number of its last step; 0 if it has made none.
  int64_t step() const;

 private:
  MemoryFile file_;
};

/// Returns a page a worker; none if the watch is off or the system has no memory files.
std::vector<WorkerPage> make_worker_pages(int num_workers, const Environment& environment);

}  // namespace hasten::launcher
