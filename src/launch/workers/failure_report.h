// The report of a failed run: one box, the root cause first, then what became of the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hasten/launch/base/worker_place.h"
#include "hasten/launch/workers/supervisor.h"

namespace hasten::launcher {

/// Returns the usual cause of such an end and a place to look; "" if there is nothing to say. For SIGKILL see
/// src/launch/workers/memory_events.h.
std::string hint_for(int wait_status);

/// A rank that ended with exit code 0 while others went on.
struct EarlyEnd {
  int rank;
  int64_t step = 0;  ///< its last step of an optimizer; 0: none, or not known
};

/// Facts about the first failing worker besides its end; empty ones are left out.
struct FailureFacts {
  std::optional<std::string> message = {};  ///< of its error file
  std::vector<EarlyEnd> left_early = {};    ///< ranks that had ended with exit code 0 before
  std::string hint = {};
  std::string host = {};
  std::string time = {};
  std::string where = {};  ///< its place when it ended: "step 301, waits in all_reduce 1204"
  /// Its last lines on standard error, each with its newline. Those that the message has are not shown again.
  std::string error_tail = {};
  std::string log_file = {};
};

/// Returns the report, ending in a newline; "" if the outcome has no root cause. `places` are those of the workers by
/// local rank, `run` has the number of restarts.
std::string failure_report(const Outcome& outcome, const std::vector<WorkerPlace>& places, const FailureFacts& facts,
                           const RunSettings& run = {});

}  // namespace hasten::launcher
