// One run on one machine, from the free port to the exit code: what `hasten launch` and `hasten::launch`
// share.
//
// Ties the pieces together: places and environments (worker_environment.h), processes (local_processes.h),
// decisions (supervisor.h), the report (failure_report.h), and a private folder for the workers' error files.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "hasten/core/env.h"

namespace hasten {

/// How a run on one machine is started. The defaults fit one machine.
struct LaunchOptions {
  /// Where rank 0 opens the store.
  std::string master_addr = "127.0.0.1";
  /// 0: a port that is free now.
  int master_port = 0;
  /// Seconds between SIGTERM and SIGKILL when workers are stopped. Default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT of
  /// the environment, else 30, as torchrun has it.
  std::optional<double> shutdown_timeout_s = {};
};

namespace launcher {

/// Runs in a worker's process with the environment meant for it, which is not yet that process's own; what it
/// returns is the worker's exit code.
using WorkerBody = std::function<int(const Environment& environment)>;

/// Starts `num_workers` processes, supervises them, reports a failure on standard error; returns the exit
/// code of the run (Outcome in supervisor.h). Must be called while the process has one thread. Collective:
/// no. Blocks: until nobody of the workers and their children is left. Throws: UsageError if a number is out
/// of range, master_port is in use, or the system allows no further process.
int run_local(int num_workers, const LaunchOptions& options, const Environment& inherited,
              const WorkerBody& body);

}  // namespace launcher
}  // namespace hasten
