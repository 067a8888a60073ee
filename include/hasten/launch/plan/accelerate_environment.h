// What the launcher's settings become in every worker's environment, and what differs from worker to worker.
//
// The variables are Accelerate's, so that its programs (and hasten's) find mixed precision, FSDP, DeepSpeed
// and the rest as under `accelerate launch`; thread counts follow torchrun or Accelerate, whoever's options
// chose the processes. The place of a worker in the run is worker_environment.h's.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/plan/run_plan.h"

namespace hasten::launcher {

/// `inherited` with the variables that all workers of the run share.
/// Collective: no. Blocks: no. Throws: nothing.
Environment accelerate_environment(const Environment& inherited, const LaunchSettings& settings, const RunPlan& plan,
                      const Machine& machine);

/// What the options change in the environment of one worker, which has its place already: with
/// virtual_local_rank the one GPU it sees as LOCAL_RANK 0.
Environment per_worker_overrides(const Environment& of_worker, const LaunchSettings& settings);

/// "--local-rank=N" for a worker if --pass_local_rank asks for it, else nothing. `of_worker` before
/// per_worker_overrides().
std::vector<std::string> worker_arguments(const Environment& of_worker, const LaunchSettings& settings);

}  // namespace hasten::launcher
