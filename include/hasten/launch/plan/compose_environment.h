// The environment of a worker, composed by one pure function from a plan and the worker's ranks.
//
// The variables are torchrun's, so that any torch.distributed program finds its ranks, and Accelerate's, so that
// its programs find mixed precision, FSDP and DeepSpeed as under `accelerate launch`. The golden cases of both are
// checked without a process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/launch/base/worker_place.h"
#include "hasten/launch/plan/run_plan.h"

namespace hasten::launcher {

/// The settings of `hasten launch` with the plan and the machine that belong to them. All three outlive it.
struct LaunchFacts {
  const LaunchSettings& settings;
  const RunPlan& plan;
  const Machine& machine;
};

/// Everything that decides the environment of the workers of one machine.
struct EnvironmentPlan {
  /// The launcher's own variables.
  Environment inherited = {};
  /// Nothing for hasten::launch, whose workers get torchrun's variables alone.
  std::optional<LaunchFacts> launch = {};
  /// Names of variables that stay with the launcher: secrets of the rendezvous.
  std::vector<std::string> withheld = {};
  RunSettings run = {};
  /// Network interface that reaches the other machines; "" if it is unknown or there are none.
  std::string network_interface = {};
};

/// Returns the inherited variables with, in this order: withheld ones removed; Accelerate's for the launch
/// settings; RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and the rest of torchrun's (docs/launch.md);
/// GLOO_SOCKET_IFNAME for the network interface; with virtual_local_rank the one GPU that the worker sees as
/// LOCAL_RANK 0. OMP_NUM_THREADS becomes 1 if the machine has several workers, TORCH_NCCL_ASYNC_ERROR_HANDLING
/// becomes 1; these two and the interface are set only if they are unset. TORCHELASTIC_USE_AGENT_STORE is False,
/// other than torchrun's, because no agent serves a store.
/// Collective: no. Blocks: no. Throws: nothing.
Environment compose_environment(const EnvironmentPlan& plan, const WorkerPlace& place);

/// Returns "--local-rank=N" for a worker if --pass_local_rank asks for it, else nothing.
std::vector<std::string> worker_arguments(const LaunchSettings& settings, const WorkerPlace& place);

}  // namespace hasten::launcher
