// Where the launchers of a run on several machines meet before they start their workers (backend static).
//
// The launcher of machine 0 listens at MASTER_ADDR:MASTER_PORT, all launchers send their settings there, and
// workers start only after all have joined and agree. So a machine that is missing, or was given other
// numbers, is an error with its name, and not a run that waits for ranks that never come. The port is let go
// before any worker is started, since rank 0 of them opens the store there. Like that store, it believes
// any process that reaches the port.
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
  /// Takes what the user should know while it lasts.
  std::function<void(const std::string& line)> notice = [](const std::string&) {};
  /// Asked ten times a second; true ends the meeting without a result.
  std::function<bool()> interrupted = [] { return false; };
};

/// What does not fit between the machines that have come so far, a sentence; "" if all does.
std::string disagreement(const std::vector<MachineFacts>& machines);

/// Returns once all machines are there and agree; false if it was interrupted. Collective: yes, of the
/// run's launchers. Blocks: until then. Throws: UsageError, the same on all machines, if they disagree; or if
/// machine 0 cannot listen at the address; CommError if some machine has not come in time.
bool join_static(const MachineFacts& mine, const MeetingOptions& options);

}  // namespace hasten::launcher
