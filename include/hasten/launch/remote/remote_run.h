// Starts a run on several machines and stays with it. Output and exit codes come back. The first machine that fails
// ends all. The end of this process, for any reason, ends them too.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/launch/remote/remote_plan.h"

namespace hasten::launcher {

/// Carries the plan out. Returns the exit code of the machine that failed first, and 0 if none did. If this process
/// received signal s that ends it, returns 128 + s. `hasten` is this command's path, which must be the same on all
/// machines. Through OpenMPI or Slurm this process becomes mpirun or srun. Must be called while the process has one
/// thread. Blocks: until no process is left anywhere that can be reached. Throws: UsageError if the system allows no
/// further process.
int run_remote(const RemotePlan& plan, const std::string& hasten, const Environment& environment,
               std::chrono::duration<double> shutdown_timeout);

/// Runs `hasten remote` on a machine of the run: `kind` is follow, watch-stdin or watch-parent. `task` is the task,
/// unless the session's connection carries it. `launch` is `hasten launch` for this task, called in its folder and with
/// its variables. Returns its exit code. Blocks: until it has ended. Throws: UsageError if kind or task cannot be
/// understood.
int serve_remote(const std::string& kind, const std::string& task, const std::function<int(const RemoteTask&)>& launch);

}  // namespace hasten::launcher
