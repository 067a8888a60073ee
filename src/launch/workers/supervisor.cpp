// The decisions of supervisor.h, one function an event.
#include "hasten/launch/workers/supervisor.h"

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <exception>
#include <utility>

#include "hasten/core/text.h"
#include "hasten/launch/base/signals.h"

namespace hasten::launcher {
namespace {

class Supervision {
 public:
  Supervision(WorkerProcesses& processes, const SupervisorOptions& options)
      : processes_(processes), options_(options) {}

  Outcome run() {
    options_.before_attempt(0);
    start();
    while (num_gone_ < workers_.size() || restarting_) handle(processes_.wait(deadline_));
    return std::move(outcome_);
  }

 private:
  struct Worker {
    bool exited = false;
    bool gone = false;
    bool is_leaving = false;                 // has left the run, and gets the signal to stop later
    bool is_told = false;                    // that it is stopped was said
    std::optional<WorkerEnd> replaced = {};  // it failed, and is started again once its group is gone
  };

  void start() {
    workers_.assign(static_cast<size_t>(options_.num_workers), {});
    num_exited_ = num_gone_ = 0;
    stopping_ = restarting_ = is_sparing_ = false;
    deadline_.reset();
    pids_ = processes_.start(options_.num_workers);
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kExited:
        return on_exit(event.local_rank, event.value);
      case Event::Kind::kGone:
        return on_gone(event.local_rank);
      case Event::Kind::kSignal:
        return on_signal(event.value);
      case Event::Kind::kDeadline:
        if (num_gone_ == workers_.size()) return restart();
        return is_sparing_ ? stop_leaving() : stopping_ ? kill_all() : look_at_those_left();
      case Event::Kind::kOther:
        return;
    }
  }

  void on_exit(int local_rank, int status) {
    Worker& worker = workers_[static_cast<size_t>(local_rank)];
    worker.exited = true;
    const WorkerEnd end{local_rank, pids_[static_cast<size_t>(local_rank)], status, processes_.now(),
                        options_.left_at(local_rank)};
    if (status != 0 && !stopping_ && is_replaced(end)) {
      worker.replaced = end;
      processes_.signal(local_rank, SIGKILL);
      return;
    }
    ++num_exited_;
    if (status != 0 && !stopping_) {
      outcome_.root_cause = end;
      outcome_.exit_code = exit_code_of(status);
      restarting_ = outcome_.attempt < options_.max_restarts;
      stop_after_failure();
      return;
    }
    outcome_.others.push_back(end);
    if (worker.is_leaving) {
      processes_.signal(local_rank, SIGTERM);  // the rest of its group
    } else if (stopping_) {
      // Background children of shells ignore SIGINT. No worker gets the same signal twice. A program that saves its
      // state on the first SIGTERM may take the second for impatience (docs/decisions/0010-sigterm-is-said-once.md).
      if (stop_signal_ != SIGTERM) processes_.signal(local_rank, SIGTERM);
    } else if (num_exited_ == workers_.size()) {
      stop(SIGTERM);
    } else {
      deadline_ = after(options_.kLookDelay);
    }
  }

  // The other ranks, which would say that they wait for a stopped one, have ended.
  void look_at_those_left() {
    deadline_.reset();
    for (size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (worker.exited || worker.is_told || !options_.is_stopped(pids_[i])) continue;
      worker.is_told = true;
      options_.notice(
          text("worker ", i, " is stopped, and others have ended; kill -CONT ", pids_[i], " lets it go on"));
    }
  }

  bool is_replaced(const WorkerEnd& end) const {
    const Replacing answer = options_.replaces(end, num_exited_ > 0);
    if (!answer.line.empty()) options_.notice(answer.line);
    return answer.is_due;
  }

  // Returns true if the worker runs again.
  bool replace(int local_rank) {
    Worker& worker = workers_[static_cast<size_t>(local_rank)];
    const WorkerEnd end = *std::exchange(worker.replaced, std::nullopt);
    if (!stopping_) {
      try {
        pids_[static_cast<size_t>(local_rank)] = processes_.start_one(local_rank);
        worker = {};
        return true;
      } catch (const std::exception& error) {
        options_.notice(error.what());
        outcome_.root_cause = end;
        outcome_.exit_code = exit_code_of(end.status);
        restarting_ = outcome_.attempt < options_.max_restarts;
        stop_after_failure();
      }
    } else {
      outcome_.others.push_back(end);
    }
    ++num_exited_;
    return false;
  }

  void on_gone(int local_rank) {
    if (workers_[static_cast<size_t>(local_rank)].replaced && replace(local_rank)) return;
    workers_[static_cast<size_t>(local_rank)].gone = true;
    ++num_gone_;
    if (num_gone_ < workers_.size() || !restarting_) return;
    const auto doubled = options_.restart_delay * std::exp2(outcome_.attempt);
    const auto delay = std::min(doubled, SupervisorOptions::kMaxRestartDelay);
    const WorkerEnd& first = *outcome_.root_cause;
    options_.notice(text("worker ", first.local_rank, " failed: ", describe_end(first.status), "; restart ",
                         outcome_.attempt + 1, " of ", options_.max_restarts, " in ", delay.count(), " s"));
    deadline_ = after(delay);
  }

  void restart() {
    const int attempt = outcome_.attempt + 1;
    try {
      options_.before_attempt(attempt);
    } catch (const std::exception& error) {
      options_.notice(text("no restart: ", error.what()));
      restarting_ = false;
      return;
    }
    outcome_ = {.attempt = attempt};
    start();
  }

  void on_signal(int signal) {
    if (!ends_run(signal)) {
      signal_all(signal);
    } else if (restarting_) {
      give_up_restarting(signal);
    } else if (!stopping_) {
      outcome_.exit_code = 128 + signal;
      stop(signal);
      if (signal == SIGINT) options_.notice("stopping the workers; Ctrl-C again ends them at once");
    } else if (signal == SIGINT) {
      kill_all();
    }
  }

  // The workers are being stopped already, or are gone.
  void give_up_restarting(int signal) {
    restarting_ = false;
    outcome_.others.insert(outcome_.others.begin(), *std::exchange(outcome_.root_cause, std::nullopt));
    outcome_.exit_code = 128 + signal;
  }

  void stop_after_failure() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      worker.is_leaving = !worker.exited && options_.left_at(static_cast<int>(i)).has_value();
      is_sparing_ = is_sparing_ || worker.is_leaving;
    }
    stop(SIGTERM);
    if (is_sparing_) deadline_ = after(std::min(options_.kLeavingTime, options_.shutdown_timeout));
  }

  void stop_leaving() {
    is_sparing_ = false;
    deadline_ = after(options_.shutdown_timeout);
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!std::exchange(workers_[i].is_leaving, false) || workers_[i].exited) continue;
      processes_.signal(static_cast<int>(i), SIGTERM);
    }
  }

  // Signals every group to end: the workers by `signal`, the remaining processes of ended workers by SIGTERM.
  void stop(int signal) {
    stopping_ = true;
    stop_signal_ = signal;
    deadline_ = after(options_.shutdown_timeout);
    for (size_t i = 0; i < workers_.size(); ++i) {
      const Worker& worker = workers_[i];
      if (!worker.gone && !worker.is_leaving) processes_.signal(static_cast<int>(i), worker.exited ? SIGTERM : signal);
    }
  }

  void kill_all() {
    is_sparing_ = false;
    deadline_.reset();
    signal_all(SIGKILL);
  }

  void signal_all(int signal) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i].gone) processes_.signal(static_cast<int>(i), signal);
    }
  }

  TimePoint after(std::chrono::duration<double> delay) const {
    return processes_.now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(delay);
  }

  WorkerProcesses& processes_;
  const SupervisorOptions& options_;
  std::vector<Worker> workers_;
  std::vector<pid_t> pids_;
  size_t num_exited_ = 0;
  size_t num_gone_ = 0;
  bool stopping_ = false;
  bool is_sparing_ = false;            // workers that have left are not signalled before the deadline
  bool restarting_ = false;            // all are to be started again once no process is left
  int stop_signal_ = 0;                // the signal that stopped the workers
  std::optional<TimePoint> deadline_;  // when SIGKILL is due, the restart, or a look at those left
  Outcome outcome_;
};

}  // namespace

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) return text("killed by ", signal_name(WTERMSIG(wait_status)));
  return text("exit code ", WEXITSTATUS(wait_status));
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

bool ends_run(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

Outcome supervise(WorkerProcesses& processes, const SupervisorOptions& options) {
  return Supervision(processes, options).run();
}

}  // namespace hasten::launcher
