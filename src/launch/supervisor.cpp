// The decisions of supervisor.h, one function an event.
#include "hasten/launch/supervisor.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>

namespace hasten::launcher {
namespace {

class Supervision {
 public:
  Supervision(WorkerProcesses& processes, const SupervisorOptions& options)
      : processes_(processes), options_(options), workers_(static_cast<size_t>(options.num_workers)) {}

  Outcome run() {
    pids_ = processes_.start(options_.num_workers);
    while (num_gone_ < workers_.size()) handle(processes_.wait(deadline_));
    return std::move(outcome_);
  }

 private:
  struct Worker {
    bool exited = false;
    bool gone = false;
  };

  void handle(const Event& event) {
    switch (event.kind) {
      case Event::Kind::kExited:
        return on_exit(event.local_rank, event.value);
      case Event::Kind::kGone:
        return on_gone(event.local_rank);
      case Event::Kind::kSignal:
        return on_signal(event.value);
      case Event::Kind::kDeadline:
        return signal_all(SIGKILL);
    }
  }

  void on_exit(int local_rank, int status) {
    workers_[static_cast<size_t>(local_rank)].exited = true;
    ++num_exited_;
    const WorkerEnd end{local_rank, pids_[static_cast<size_t>(local_rank)], status};
    if (status != 0 && !stopping_) {
      outcome_.root_cause = end;
      outcome_.exit_code = exit_code_of(status);
      stop(SIGTERM);
      return;
    }
    outcome_.others.push_back(end);
    if (stopping_) {
      // Background children of shells ignore SIGINT. Nobody is told the same twice: a program that saves its
      // state on the first SIGTERM may take the second for impatience.
      if (stop_signal_ != SIGTERM) processes_.signal(local_rank, SIGTERM);
    } else if (num_exited_ == workers_.size()) {
      stop(SIGTERM);
    }
  }

  void on_gone(int local_rank) {
    workers_[static_cast<size_t>(local_rank)].gone = true;
    ++num_gone_;
  }

  void on_signal(int signal) {
    if (!stopping_) {
      outcome_.exit_code = 128 + signal;
      if (signal == SIGINT) options_.notice("stopping the workers; Ctrl-C again ends them at once");
      stop(signal);
    } else if (signal == SIGINT) {
      signal_all(SIGKILL);
    }
  }

  // Tells every group to end: the workers by `signal`, what ended workers have left behind by SIGTERM.
  void stop(int signal) {
    stopping_ = true;
    stop_signal_ = signal;
    deadline_ = processes_.now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(options_.shutdown_timeout);
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i].gone) processes_.signal(static_cast<int>(i), workers_[i].exited ? SIGTERM : signal);
    }
  }

  void signal_all(int signal) {
    deadline_.reset();
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i].gone) processes_.signal(static_cast<int>(i), signal);
    }
  }

  WorkerProcesses& processes_;
  const SupervisorOptions& options_;
  std::vector<Worker> workers_;
  std::vector<pid_t> pids_;
  size_t num_exited_ = 0;
  size_t num_gone_ = 0;
  bool stopping_ = false;
  int stop_signal_ = 0;                // what the workers were told to stop with
  std::optional<TimePoint> deadline_;  // when SIGKILL is due
  Outcome outcome_;
};

}  // namespace

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Outcome supervise(WorkerProcesses& processes, const SupervisorOptions& options) {
  return Supervision(processes, options).run();
}

}  // namespace hasten::launcher
