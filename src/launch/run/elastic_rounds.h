// A run whose workers are started again and again with new places: the interface of local_run.cpp to the decider
// (elastic_run.cpp).
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hasten/launch/rendezvous/rendezvous_message.h"
#include "hasten/launch/workers/supervisor.h"

namespace hasten {
class Environment;
struct LaunchOptions;
}  // namespace hasten

namespace hasten::launcher {

struct EnvironmentPlan;
struct WorkerPlace;

class ElasticRounds {
 public:
  virtual ~ElasticRounds() = default;
  virtual void add_sources(std::vector<pollfd>& sources) const = 0;
  /// Returns the places of the next start; nothing when the run has ended. Blocks: until then. `processes` has no
  /// workers then, but signals and the sources above.
  virtual std::optional<Assignment> next(WorkerProcesses& processes) = 0;
  /// Returns the workers for the supervisor; the decider can stop them.
  virtual WorkerProcesses& supervised(WorkerProcesses& processes) = 0;
  /// No worker of the last start is left. `report` is its failure's, "" without one.
  virtual void ended(const Outcome& outcome, const std::string& report) = 0;
  /// Returns the final report, and the exit code of the run.
  virtual std::string report() const = 0;
  virtual int exit_code() const = 0;
};

/// As run_local, in rounds.
int run_in_rounds(int num_workers, const LaunchOptions& options, const EnvironmentPlan& environment,
                  const std::function<int(const WorkerPlace& place, const Environment& environment)>& body,
                  ElasticRounds& rounds);

}  // namespace hasten::launcher
