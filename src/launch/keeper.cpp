// One worker's keeper; see keeper.h. Runs in a forked process: no locks, no exit handlers, nothing thrown.
#include "keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace hasten::launcher {
namespace {

// How long the keeper waits for a killed group to vanish; only a process the kernel itself holds takes
// longer.
constexpr int kKillTimeoutMs = 2000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void tell(int socket, KeeperMessage::Kind kind, int value) {
  const KeeperMessage message{kind, value, now_ns()};
  send(socket, &message, sizeof message, MSG_NOSIGNAL);
}

[[noreturn]] void run_worker(const KeeperTask& task, pid_t keeper) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper) _exit(1);  // the keeper died before the line above
  // Only now is there a group to send signals to, so only now does the launcher hear of the worker.
  tell(task.socket, KeeperMessage::Kind::kStarted, getpid());
  close(task.socket);
  sigprocmask(SIG_SETMASK, &task.worker_signal_mask, nullptr);
  _exit(task.body());
}

// Gives back everything that was inherited but the socket: the keeper must not hold the user's pipes, files
// and ports open.
void drop_files_but(int socket) {
  dup2(socket, STDIN_FILENO);
  close_range(STDOUT_FILENO, ~0U, 0);
}

class Keeper {
 public:
  Keeper(const KeeperTask& task, pid_t worker, int child_events)
      : task_(task), worker_(worker), child_events_(child_events) {}

  [[noreturn]] void run() {
    pollfd sources[] = {{STDIN_FILENO, POLLIN, 0}, {child_events_, POLLIN, 0}};
    while (true) {
      const int num_ready = poll(sources, 2, killed_ ? kKillTimeoutMs : -1);
      if (num_ready == 0) finish();
      if (sources[1].revents != 0) reap();
      if (sources[0].revents != 0 && !obey()) sources[0].fd = -1;
      if (!leader_alive_ && kill(-worker_, 0) != 0 && errno == ESRCH) finish();
    }
  }

 private:
  // Reads one order; false when the launcher has gone, or has closed the socket to end the group.
  bool obey() {
    int signal = 0;
    if (recv(STDIN_FILENO, &signal, sizeof signal, 0) == sizeof signal) {
      send_to_group(signal);
      return true;
    }
    abandoned_ = true;
    send_to_group(SIGKILL);
    return false;
  }

  void send_to_group(int signal) {
    killed_ = killed_ || signal == SIGKILL;
    kill(-worker_, signal);
    // If the launcher vanished at once, the worker may not have made its group yet.
    if (abandoned_ && leader_alive_) kill(worker_, SIGKILL);
  }

  // The keeper is the subreaper of all that the worker starts: orphans of the group come to it, too.
  void reap() {
    signalfd_siginfo ignored;
    while (read(child_events_, &ignored, sizeof ignored) > 0) {
    }
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != worker_) continue;
      leader_alive_ = false;
      tell(STDIN_FILENO, KeeperMessage::Kind::kExited, status);
    }
  }

  [[noreturn]] void finish() {
    if (abandoned_) task_.orphaned();
    _exit(0);
  }

  const KeeperTask& task_;
  const pid_t worker_;
  const int child_events_;
  bool leader_alive_ = true;
  bool killed_ = false;
  bool abandoned_ = false;
};

}  // namespace

void keep(const KeeperTask& task) {
  setsid();  // Ctrl-C in the terminal is the launcher's to handle
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal(SIGCHLD, SIG_DFL);  // were it ignored, the worker's status would be lost
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);

  const pid_t self = getpid();
  const pid_t worker = fork();
  if (worker == 0) run_worker(task, self);
  if (worker < 0) {
    tell(task.socket, KeeperMessage::Kind::kNotStarted, errno);
    _exit(1);
  }
  prctl(PR_SET_NAME, "hasten-keeper");  // after the fork: an in-program worker keeps its program's name
  drop_files_but(task.socket);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  Keeper(task, worker, signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK)).run();
}

}  // namespace hasten::launcher
