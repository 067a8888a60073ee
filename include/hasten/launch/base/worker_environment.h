// The environment of one worker: torchrun's variables, so that any torch.distributed program finds its place.
//
// A pure function of where the worker stands and what its run has in common; it starts nothing, so the golden
// cases of torchrun are checked without a process. Starting the workers is local_processes.h, choosing the
// port port.h.
#pragma once

#include <string>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::launcher {

/// Where one worker stands. `rank` counts over all machines, `local_rank` on its own.
struct WorkerPlace {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
};

/// Workers of one role; the roles of a run take the ranks in their order.
struct RoleCount {
  std::string name;
  int count = 1;
  bool operator==(const RoleCount&) const = default;
};

/// What the workers of one run have in common.
struct RunSettings {
  /// Where rank 0 of the workers opens the store; the launcher itself serves none.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::string run_id = "none";
  std::string role = "default";
  /// Several roles (--roles ps=1,trainer=2) in the place of one; empty: all workers have `role`.
  std::vector<RoleCount> roles = {};
  /// HASTEN_RUN_KEY: 64 hexadecimal digits by which the processes of this run know each other; empty: none is set.
  std::string run_key = {};
  int restart_count = 0;
  int max_restarts = 0;
  /// Those that the launcher hands on, by name.
  std::string signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
};

/// `inherited` with the worker's variables set: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and the rest of
/// torchrun's, listed in docs/launch.md. As torchrun does, OMP_NUM_THREADS becomes 1 when there are several
/// workers on the machine, and TORCH_NCCL_ASYNC_ERROR_HANDLING becomes 1, each only if unset. One value
/// differs: TORCHELASTIC_USE_AGENT_STORE is False, because no agent serves a store. `error_file`: where the
/// worker may leave its last words (error_file.h). Collective: no. Blocks: no. Throws: nothing.
Environment worker_environment(const Environment& inherited, const RunSettings& settings,
                               const WorkerPlace& place, const std::string& error_file);

}  // namespace hasten::launcher
