// The plan of a run, made from its settings: the number of processes and machines, and their meeting point. It checks
// that all settings fit together.
//
// A pure function; every contradiction is reported, with where each side came from, in one message. The command decides
// whether this hasten can carry the plan out.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/base/machine.h"
#include "hasten/launch/base/worker_place.h"
#include "hasten/launch/plan/settings.h"
#include "hasten/launch/rendezvous/rendezvous_conf.h"

namespace hasten::launcher {

/// Which of Accelerate's launchers the settings choose; it decides the form of the variables.
enum class LauncherKind { kSimple, kTorchrun, kDeepspeed, kTpu, kSagemaker };

struct RunPlan {
  LauncherKind kind = LauncherKind::kSimple;
  int num_processes = 1;        ///< on all machines; at least, if the number of machines is a range
  int num_local_processes = 1;  ///< on this one
  /// By machine_rank, where machines have different numbers (--nproc_per_node 1,3); otherwise empty.
  std::vector<int> processes_of_machines = {};
  int min_machines = 1;
  int max_machines = 1;
  int machine_rank = 0;
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint = {};
  RendezvousConf rdzv_conf = {};  ///< its join_timeout is for static machines, too
  RunSettings run = {};

  /// Returns true if machines may come and go: the launchers use a rendezvous (elastic_run.h).
  bool is_elastic() const { return rdzv_backend != "static" && (max_machines > 1 || !rdzv_endpoint.empty()); }
};

/// `problems` is what else the caller has found wrong. Throws: UsageError with everything that is wrong:
/// these, values that do not fit and settings that contradict.
RunPlan plan_run(const LaunchSettings& settings, const Machine& machine, std::vector<std::string> problems = {});

}  // namespace hasten::launcher
