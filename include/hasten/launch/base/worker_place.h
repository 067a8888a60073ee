// Plain values: the rank of one worker, and the settings that the workers of a run share.
//
// They are sent by the rendezvous, shown in reports and written into variables (compose_environment.h).
#pragma once

#include <string>
#include <vector>

namespace hasten::launcher {

/// The ranks of one worker. `rank` counts over all machines, `local_rank` on one.
struct WorkerPlace {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  /// Path of the file for the worker's error message (error_file.h).
  std::string error_file = {};
};

/// Workers of one role; the roles of a run take the ranks in their order.
struct RoleCount {
  std::string name;
  int count = 1;
  bool operator==(const RoleCount&) const = default;
};

/// Settings that all workers of one run share: of a plan, of the options of a launch, of the workers' variables.
struct RunSettings {
  /// Where rank 0 of the workers opens the store; the launcher itself serves none.
  std::string master_addr = "127.0.0.1";
  /// 0: a port that is free when the workers start.
  int master_port = 0;
  /// Names the run's log folder, and is TORCHELASTIC_RUN_ID. Empty in a plan: one is made (--standalone).
  std::string run_id = "none";
  /// The workers' ROLE_NAME, and in the prefix of `tee`.
  std::string role = "default";
  /// Several roles (--roles ps=1,trainer=2) in the place of one, which take the ranks in their order; together as many
  /// as there are workers. Empty: all workers have `role`.
  std::vector<RoleCount> roles = {};
  /// HASTEN_RUN_KEY: 64 hexadecimal digits by which the processes of this run recognise each other. If it is empty,
  /// none is set.
  std::string run_key = {};
  int restart_count = 0;
  /// How often a failed group of workers is started again, with a new attempt number, and a new port where it was not
  /// given.
  int max_restarts = 0;
  /// HASTEN_RUN_STARTED, in microseconds since 1970: the same for a worker and for the one that replaces it.
  int64_t started_us = 0;
  /// How many workers that fail are started again alone, with HASTEN_REPLACES=1, while the others go on
  /// (HASTEN_SURVIVE).
  int survive = 0;
  /// Names of the signals that the launcher forwards.
  std::string signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
};

}  // namespace hasten::launcher
