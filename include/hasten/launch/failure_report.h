// What the user is told when a run fails: the root cause first, in a few lines, then what became of the
// others.
#pragma once

#include <optional>
#include <string>

#include "hasten/launch/supervisor.h"
#include "hasten/launch/worker_environment.h"

namespace hasten::launcher {

/// "exit code 3" or "killed by SIGSEGV" from what waitpid gave.
std::string describe_end(int wait_status);

/// What usually lies behind such an end and where to look, "" if there is nothing to say.
std::string hint_for(int wait_status);

/// The report, ending in a newline; "" if the outcome has no root cause. `places` are those of the workers by
/// local rank; `message` is what the first failing worker wrote to its error file.
/// Collective: no. Blocks: no. Throws: nothing.
std::string failure_report(const Outcome& outcome, const std::vector<WorkerPlace>& places,
                           const std::optional<std::string>& message);

}  // namespace hasten::launcher
