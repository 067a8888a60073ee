// A run's part on one machine, from the free port to the exit code: what `hasten launch` and `hasten::launch`
// share.
//
// Connects the pieces: ranks and environments (compose_environment.h), processes (local_processes.h), their output
// (output.h), decisions (supervisor.h), the report (failure_report.h). A private folder holds the workers' error files.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hasten/launch/base/worker_place.h"
#include "hasten/launch/plan/compose_environment.h"

namespace hasten {

/// How a run is started on this machine. The defaults fit a run on one machine.
struct LaunchOptions {
  /// How many machines the run has, and which of them this is. With several, their launchers connect at
  /// run.master_addr:run.master_port before a worker is started (static_rendezvous.h).
  int num_machines = 1;
  int machine_rank = 0;
  /// How many workers each machine has, by machine_rank. Empty: all as many as this one. Ranks count machine
  /// by machine.
  std::vector<int> workers_of_machines = {};
  /// Seconds to wait there for the others. Default: torchrun's.
  double join_timeout_s = 600;
  /// Settings of all workers: where rank 0 opens the store, restarts, the run's name and roles. `run_key`,
  /// `restart_count` and `signals` are set for each run.
  launcher::RunSettings run = {};
  /// Seconds between SIGTERM and SIGKILL when workers are stopped. Default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT of
  /// the environment, else 30, as torchrun has it.
  std::optional<double> shutdown_timeout_s = {};
  /// Seconds before the first restart; they double with each further one, up to 30.
  double monitor_interval_s = 0.1;
  /// Signals to this process that are passed on to the workers. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the run, others
  /// do not. Default: those four and SIGUSR1.
  std::vector<int> signals_to_handle = {};
  /// Destination of the workers' output; see launcher::OutputOptions (output.h). With `redirects` or `tee` and without
  /// `log_dir`, files are below TMPDIR.
  std::string log_dir = {};
  std::string redirects = {};
  std::string tee = {};
  std::vector<std::string> duplicate_stdout_filters = {};
  std::vector<std::string> duplicate_stderr_filters = {};
  std::vector<int> local_ranks_filter = {};
  bool prefix_ranks = false;
  /// For hasten::launch: the workers' ACCELERATE_MIXED_PRECISION, one of no, fp16, bf16 and fp8. Empty: inherited.
  std::string mixed_precision = {};
  /// For hasten::launch: the workers stay on the CPU (ACCELERATE_USE_CPU). false: inherited.
  bool cpu = false;
};

namespace launcher {

/// Runs in a worker's process with the environment composed for it, which is not yet that process's own. Returns the
/// worker's exit code.
using WorkerBody = std::function<int(const WorkerPlace& place, const Environment& environment)>;

/// Completes `environment` with the settings of the run, starts `num_workers` processes, and supervises them. Reports a
/// failure on standard error. Returns the exit code of the run (Outcome in supervisor.h). Must be called while the
/// process has one thread. Collective: of the launchers of all machines. Blocks: until no worker and none of its
/// children is left. Throws: UsageError if a number is out of range, master_port is in use, log files cannot be made,
/// or the system allows no further process; the exceptions of `meet`.
int run_local(int num_workers, const LaunchOptions& options, const EnvironmentPlan& environment,
              const WorkerBody& body);

}  // namespace launcher
}  // namespace hasten
