// Decides about the workers of one machine: which failed first, when the others are stopped, whether all are started
// again, the exit code.
//
// The supervisor uses `WorkerProcesses` alone (workers, signals, a clock). So every decision is tested with a fake and
// without a process. The real one is local_processes.h; the text for the user in the end is failure_report.h.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace hasten::launcher {

using TimePoint = std::chrono::steady_clock::time_point;

/// An event for the supervisor.
struct Event {
  enum class Kind {
    kExited,    ///< the worker itself has ended, with `value` as waitpid gives it; its children may remain
    kGone,      ///< no process of the worker's group is left; comes last for each worker
    kSignal,    ///< the launcher was sent the signal `value`
    kDeadline,  ///< the time given to `wait` has come
    kOther,     ///< a source other than the workers is ready (LocalProcessesOptions::add_sources)
  };
  Kind kind = Kind::kDeadline;
  int local_rank = 0;
  int value = 0;
};

/// The workers of this machine by local rank, the signals sent to the launcher, and a clock.
class WorkerProcesses {
 public:
  virtual ~WorkerProcesses() = default;

  /// Starts the workers with local ranks 0 to num_workers - 1, each the leader of a process group of its own. Returns
  /// their process ids. Called again only when no process of an earlier start is left. Throws: UsageError if the system
  /// does not allow that many processes.
  virtual std::vector<pid_t> start(int num_workers) = 0;

  /// Starts a worker again, of which no process is left, while the others go on. Returns its process id. Throws: as
  /// start.
  virtual pid_t start_one(int local_rank) = 0;

  /// Sends `signal` to the worker's whole group, SIGUSR1 and SIGUSR2 to the worker alone. Does nothing if no process of
  /// it is left.
  virtual void signal(int local_rank, int signal) = 0;

  /// Returns the next event, in the order in which they happened. Blocks: until there is one or `deadline` has come.
  virtual Event wait(std::optional<TimePoint> deadline) = 0;

  virtual TimePoint now() const = 0;
};

/// How a worker ended. `status` is waitpid's, `time` that of its notice, `left` that of its leaving the run in order.
struct WorkerEnd {
  int local_rank = 0;
  pid_t pid = 0;
  int status = 0;
  TimePoint time = {};
  std::optional<TimePoint> left = {};
};

/// How a run ended.
struct Outcome {
  /// The exit code: 0; 128 + s if signal s stopped the launcher; else the first failing worker's (128 + s for signal
  /// s).
  int exit_code = 0;
  /// The first failure that was observed. None if all went well or a signal ended the run.
  std::optional<WorkerEnd> root_cause = {};
  /// All other workers, in the order of their ends.
  std::vector<WorkerEnd> others = {};
  /// The attempt all this is about: 0, or how often the workers were started again.
  int attempt = 0;
};

/// 0 to 255 for an exit, 128 + s for signal s, as shells have it.
int exit_code_of(int wait_status);

/// "exit code 3" or "killed by SIGSEGV".
std::string describe_end(int wait_status);

/// Whether a worker that failed is started again alone, and a line for the user, which may be empty.
struct Replacing {
  bool is_due = false;
  std::string line = {};
};

struct SupervisorOptions {
  int num_workers = 1;
  /// How long the workers' groups may go on after the signal to stop, before SIGKILL.
  std::chrono::duration<double> shutdown_timeout = std::chrono::seconds(30);
  /// How often a failed group is started again.
  int max_restarts = 0;
  /// The time before the first restart; it doubles with each further one, up to kMaxRestartDelay.
  std::chrono::duration<double> restart_delay = std::chrono::milliseconds(100);
  /// Takes messages for the user while the run goes on: an interrupt, a restart.
  std::function<void(const std::string& line)> notice = [](const std::string&) {};
  /// Returns the time at which a worker left the run in order, though its program may still go on; none if it has not.
  std::function<std::optional<TimePoint>(int local_rank)> left_at = [](int) { return std::optional<TimePoint>(); };
  /// Returns true if a process is stopped (SIGSTOP), so that it does not end by itself.
  std::function<bool(pid_t pid)> is_stopped = [](pid_t) { return false; };
  /// Prepares an attempt before its workers are started; the first is 0.
  std::function<void(int attempt)> before_attempt = [](int) {};
  /// Decides about a worker that fails, which is started again once its group is gone. `any_has_ended`: another one has
  /// ended well.
  std::function<Replacing(const WorkerEnd& end, bool any_has_ended)> replaces = [](const WorkerEnd&, bool) {
    return Replacing{};
  };

  static constexpr std::chrono::duration<double> kMaxRestartDelay = std::chrono::seconds(30);
  /// How long a worker that has left the run may take to its own exit code after the failure of another one.
  static constexpr std::chrono::duration<double> kLeavingTime = std::chrono::seconds(5);
  /// The time behind a worker's good end at which those that are left are looked at.
  static constexpr std::chrono::duration<double> kLookDelay = std::chrono::seconds(5);
};

/// Returns true if `signal`, sent to the launcher, requests the end of the run: SIGINT, SIGTERM, SIGHUP, SIGQUIT. All
/// others are only passed on.
bool ends_run(int signal);

/// Starts the workers and waits until none is left.
///  - A worker fails that `replaces` starts again: its group gets SIGKILL, and the others go on.
///  - Another one fails: the other groups get SIGTERM at once, and SIGKILL after shutdown_timeout. When none is left,
///    all are started again, if that may still be done.
///  - A worker that has left the run gets SIGTERM kLeavingTime later. It may wait for the others as the server of their
///    store, and end with the exit code of the run.
///  - Handles a signal that ends the run: passes it to all groups, and sends SIGKILL after shutdown_timeout. There is
///    no restart. SIGINT while the workers are being stopped for good: SIGKILL at once.
///  - Another signal: passed on to the workers.
///  - A worker ends well, and another is stopped kLookDelay later: `notice` says so, once.
///  - A worker ends and leaves children in its group: they are stopped too, at the latest when all workers
///    ended.
/// Blocks: until every group is gone. Throws: what start and before_attempt throw.
Outcome supervise(WorkerProcesses& processes, const SupervisorOptions& options);

}  // namespace hasten::launcher
