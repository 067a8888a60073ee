// The environment of a worker, composed by one pure function from a plan and the worker's ranks.
//
// torchrun's variables let any torch.distributed program find its ranks. Accelerate's variables let its programs find
// mixed precision, FSDP and DeepSpeed as under `accelerate launch`. The golden cases of both are checked without a
// process.
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

/// All inputs of the environment of one machine's workers.
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

/// Returns the inherited variables, changed in this order:
/// - Withheld ones are removed.
/// - Accelerate's are set for the launch settings.
/// - torchrun's are set: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and the rest (docs/launch.md).
/// - GLOO_SOCKET_IFNAME is set for the network interface.
/// - With virtual_local_rank the worker sees one GPU, as LOCAL_RANK 0.
/// - OMP_NUM_THREADS becomes 1 if the machine has several workers, and TORCH_NCCL_ASYNC_ERROR_HANDLING becomes 1. These
///   two and the interface are set only if they are unset.
/// - TORCHELASTIC_USE_AGENT_STORE is False, unlike torchrun's, because no agent serves a store.
Environment compose_environment(const EnvironmentPlan& plan, const WorkerPlace& place);

/// Returns "--local-rank=N" for a worker if --pass_local_rank is set, or the name of --pass_local_rank_as in its place,
/// else nothing.
std::vector<std::string> worker_arguments(const LaunchSettings& settings, const WorkerPlace& place);

}  // namespace hasten::launcher
