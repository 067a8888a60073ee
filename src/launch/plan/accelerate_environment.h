// Accelerate's variables: the settings of the launcher as all workers of a run get them. Thread counts follow
// torchrun or Accelerate, depending on the options that chose the number of processes.
#pragma once

#include "hasten/core/env.h"
#include "hasten/launch/plan/run_plan.h"

namespace hasten::launcher {

/// Returns `inherited` with the variables that all workers of the run share.
Environment accelerate_environment(const Environment& inherited, const LaunchSettings& settings, const RunPlan& plan,
                                   const Machine& machine);

}  // namespace hasten::launcher
