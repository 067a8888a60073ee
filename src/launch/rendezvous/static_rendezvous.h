// The rendezvous of launchers of a run on several machines, before they start their workers (backend static).
//
// The launcher of machine 0 listens at MASTER_ADDR:MASTER_PORT. All launchers send their settings there, and workers
// start only after all have joined and agree. So a machine that is missing, or was given other numbers, is an error
// with its name. The run does not wait for ranks that never come. The port is closed before any worker is started,
// since rank 0 of them opens the store there. Like that store, it accepts any process that reaches the port.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace hasten::launcher {

/// A launcher's facts about itself and the run.
struct MachineFacts {
  int machine_rank = 0;
  int num_machines = 1;
  int num_processes = 1;  ///< on all machines
  int num_local_processes = 1;
  std::vector<int> processes_of_machines = {};  ///< where machines have different numbers; otherwise empty
  std::string run_id = "none";
  int attempt = 0;
  std::string host = {};  ///< its name, for messages
};

struct MeetingOptions {
  std::string address = {};
  int port = 0;
  /// How long to wait for all to come.
  std::chrono::duration<double> timeout = std::chrono::seconds(600);
  /// Takes messages for the user while it lasts.
  std::function<void(const std::string& line)> notice = [](const std::string&) {};
  /// Called ten times a second; true ends the rendezvous without a result.
  std::function<bool()> interrupted = [] { return false; };
};

/// Returns a sentence with the contradictions between the machines that have come so far; "" if there are none.
std::string disagreement(const std::vector<MachineFacts>& machines);

/// Returns once all machines are there and agree; false if it was interrupted. Collective: yes, of the run's launchers.
/// Blocks: until then. Throws: UsageError, the same on all machines, if they disagree; UsageError if machine 0 cannot
/// listen at the address; CommError if some machine has not come in time.
bool join_static(const MachineFacts& mine, const MeetingOptions& options);

}  // namespace hasten::launcher
