// Real workers on this machine, each under a keeper process, so that no end of the launcher leaves one
// behind.
//
//   launcher ──socket── keeper ──fork── worker (leader of its own session and process group) ── its children
//
// The keeper sends signals to the worker's group on the launcher's behalf and tells how the worker ended.
// When its socket closes, even because the launcher was killed, it kills the group. Being the worker's
// parent, it can never hit a stranger that was given the worker's process id. What to do with the events is
// the supervisor's.
#pragma once

#include <functional>
#include <memory>

#include "hasten/launch/supervisor.h"

namespace hasten::launcher {

/// Workers made by fork. The process must have one thread, and has one such object at a time.
/// While it lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT are blocked and come as events, unless they were
/// ignored (nohup). Destroying it kills every group that is left and waits for the keepers.
class LocalProcesses final : public WorkerProcesses {
 public:
  /// Runs in the worker's process; what it returns is the worker's exit code. Signals are as they were for
  /// the launcher before.
  using Body = std::function<int(int local_rank)>;

  /// `orphaned` runs in the keepers if the launcher has vanished, after the group was killed.
  explicit LocalProcesses(
      Body body, std::function<void()> orphaned = [] {});
  ~LocalProcesses() override;

  std::vector<pid_t> start(int num_workers) override;
  void signal(int local_rank, int signal) override;
  Event wait(std::optional<TimePoint> deadline) override;
  TimePoint now() const override { return std::chrono::steady_clock::now(); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::launcher
