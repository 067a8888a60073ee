// Which worker failed first, where the order of the ends is not that of the failures.
//
// A rank that fails tells the others why, and they end as well, perhaps before it. Their messages name it ("rank 1
// failed: …"), so such an end is a consequence.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hasten/launch/base/worker_place.h"
#include "hasten/launch/workers/supervisor.h"

namespace hasten::launcher {

/// Returns the rank that a worker's message names as the one that failed; nothing if it is about its own failure.
std::optional<int> rank_that_failed(const std::string& message);

/// Reads the message that a worker of this machine has left.
using MessageOf = std::function<std::optional<std::string>(int local_rank)>;

/// Returns the outcome with the cause in the place of its consequences. It changes nothing if the cause is a worker of
/// another machine. The exit code becomes that of the cause, unless a signal ended it meanwhile.
///  - A message that names another rank that failed leads to that one.
///  - A message of a rank that waited may name none, or a rank may leave without a message. The cause is then the first
///    worker that left the run before and ended with an exit code other than 0.
Outcome with_cause(Outcome outcome, const std::vector<WorkerPlace>& places, const MessageOf& message_of);

/// Returns the workers with exit code 0 that had ended, or left the run, when the first one failed, by local rank.
std::vector<WorkerEnd> workers_that_left(const Outcome& outcome);

}  // namespace hasten::launcher
