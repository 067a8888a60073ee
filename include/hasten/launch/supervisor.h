// Decides what happens to the workers of one machine: who failed first, when the others are stopped, how it
// ends.
//
// The supervisor sees the world through `WorkerProcesses` alone (workers, signals, a clock), so every
// decision is tested with a fake and without a process. The real one is local_processes.h; what is told to
// the user in the end is failure_report.h.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace hasten::launcher {

using TimePoint = std::chrono::steady_clock::time_point;

/// Something the supervisor must know of.
struct Event {
  enum class Kind {
    kExited,    ///< the worker itself has ended, with `value` as waitpid gives it; its children may live on
    kGone,      ///< nobody of the worker's process group is left; comes last for each worker
    kSignal,    ///< the launcher was sent the signal `value`
    kDeadline,  ///< the time given to `wait` has come
  };
  Kind kind = Kind::kDeadline;
  int local_rank = 0;
  int value = 0;
};

/// The workers of this machine by local rank, the signals sent to the launcher, and a clock.
class WorkerProcesses {
 public:
  virtual ~WorkerProcesses() = default;

  /// Starts the workers with local ranks 0 to num_workers - 1, each the leader of a process group of its own;
  /// returns their process ids.
  /// Throws: UsageError if the system does not allow so many processes.
  virtual std::vector<pid_t> start(int num_workers) = 0;

  /// Sends `signal` to the worker's whole group; nothing if nobody of it is left.
  virtual void signal(int local_rank, int signal) = 0;

  /// The next event, in the order in which they happened. Blocks: until there is one or `deadline` has come.
  virtual Event wait(std::optional<TimePoint> deadline) = 0;

  virtual TimePoint now() const = 0;
};

/// How a worker ended. `status` is waitpid's.
struct WorkerEnd {
  int local_rank = 0;
  pid_t pid = 0;
  int status = 0;
};

/// How a run ended.
struct Outcome {
  /// 0; 128 + s if the launcher was told to stop by signal s; else the first failing worker's (128 + s for
  /// signal s).
  int exit_code = 0;
  /// The first failure that was observed; none if all went well or a signal ended the run.
  std::optional<WorkerEnd> root_cause = {};
  /// All other workers, in the order of their ends.
  std::vector<WorkerEnd> others = {};
};

/// 0 to 255 for an exit, 128 + s for signal s, as shells have it.
int exit_code_of(int wait_status);

struct SupervisorOptions {
  int num_workers = 1;
  /// How long the workers' groups may go on after they were told to stop, before SIGKILL.
  std::chrono::duration<double> shutdown_timeout = std::chrono::seconds(30);
  /// Takes the line that is said when the user interrupts.
  std::function<void(const std::string& line)> notice = [](const std::string&) {};
};

/// Starts the workers and waits until nobody is left.
///  - A worker fails: the other groups get SIGTERM at once, and SIGKILL after shutdown_timeout.
///  - SIGINT, SIGTERM, SIGHUP or SIGQUIT: handed on to all groups, and SIGKILL after shutdown_timeout;
///    SIGINT while the workers are being stopped: SIGKILL at once.
///  - A worker ends and leaves children in its group: they are stopped too, at the latest when all workers
///  ended.
/// Collective: no. Blocks: until every group is gone. Throws: what start throws.
Outcome supervise(WorkerProcesses& processes, const SupervisorOptions& options);

}  // namespace hasten::launcher
