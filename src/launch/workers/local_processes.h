// Real workers on this machine, each under a worker shim, so that no end of the launcher leaves one behind.
//
//   launcher ──socket── worker shim ──fork── worker (leader of its own session and process group) ── its children
//
// The worker shim sends signals to the worker's group on the launcher's behalf, reports how the worker ended, and moves
// its output (src/launch/output/worker_output.h). When its socket closes, even because the launcher was killed, it
// kills the group. Being the worker's parent, it can never hit a stranger that was given the worker's process id. The
// supervisor decides on the events.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <string>

#include "hasten/launch/workers/supervisor.h"
#include "launch/output/output.h"

namespace hasten::launcher {

struct LocalProcessesOptions {
  /// The use of a worker's output; called when the workers are started.
  std::function<OutputPlan(int local_rank)> output = [](int) { return OutputPlan{}; };
  /// Runs in the worker shims if the launcher has vanished, after the group was killed.
  std::function<void()> orphaned = [] {};
  /// Takes a worker shim's message to the user (a disk that is full).
  std::function<void(int local_rank, const std::string& line)> notice = [](int, const std::string&) {};
  /// Signals to the launcher that come as events, unless they were ignored (nohup).
  std::vector<int> signals = default_signals();
  /// Adds descriptors for `wait` to watch besides; if any of them is ready it returns kOther.
  std::function<void(std::vector<pollfd>&)> add_sources = {};
  /// Where output waits for a slow reader, in files without a name.
  std::string spill_folder = "/tmp";

  /// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1.
  static std::vector<int> default_signals();
};

/// Workers made by fork. The process must have one thread, and has one such object at a time. While it exists, the
/// signals of its options are blocked and come as events. Destroying it kills every group that is left and waits for
/// the worker shims.
class LocalProcesses final : public WorkerProcesses {
 public:
  /// Runs in the worker's process; its result is the worker's exit code. Signals are as they were for the launcher
  /// before.
  using Body = std::function<int(int local_rank)>;

  explicit LocalProcesses(Body body, LocalProcessesOptions options = {});
  ~LocalProcesses() override;

  std::vector<pid_t> start(int num_workers) override;
  pid_t start_one(int local_rank) override;
  void signal(int local_rank, int signal) override;
  Event wait(std::optional<TimePoint> deadline) override;
  TimePoint now() const override { return std::chrono::steady_clock::now(); }

  /// Waits until the output of workers that are gone was written. Blocks: as long as its reader takes. If a signal has
  /// requested the end of the run (ends_run), at most `grace`; after another such signal, not at all. Output that is
  /// left then is lost.
  void finish_output(std::chrono::duration<double> grace);

  /// Returns the last lines of the standard error of a worker that is gone, each with its newline.
  std::string error_tail(int local_rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::launcher
