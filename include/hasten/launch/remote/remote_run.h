// Starts a run on several machines and stays with it: output and exit codes come back, the first machine that
// fails ends all, and whatever ends this process ends them, too.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/launch/remote/remote_plan.h"

namespace hasten::launcher {

/// Carries the plan out; returns the exit code of the machine that failed first, 0 if none did, 128 + s if
/// this process received signal s that ends it. `hasten` is this command's path, which must be the same on all
/// machines. Through OpenMPI or Slurm this process becomes mpirun or srun. Must be called while the process
/// has one thread. Collective: no. Blocks: until no process is left anywhere that can be reached. Throws:
/// UsageError if the system allows no further process.
int run_remote(const RemotePlan& plan, const std::string& hasten, const Environment& environment,
               std::chrono::duration<double> shutdown_timeout);

/// What `hasten remote` does on a machine of the run: `kind` is follow, watch-stdin or watch-parent, `task`
/// the task unless the lifeline brings it. `launch` is `hasten launch` for this task, called in its
/// folder and with its variables. Returns its exit code. Blocks: until it has ended. Throws:
/// UsageError if kind or task cannot be understood.
int serve_remote(const std::string& kind, const std::string& task,
                 const std::function<int(const RemoteTask&)>& launch);

}  // namespace hasten::launcher
