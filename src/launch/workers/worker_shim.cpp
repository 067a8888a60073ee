// A worker's shim; see worker_shim.h. It runs in a forked process: no locks and no exit handlers. No exception leaves
// it, since it would unwind into a copy of the launcher.
#include "launch/workers/worker_shim.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// How long the worker shim waits for a killed group to vanish. Only a process that the kernel itself holds takes
// longer.
constexpr auto kKillTimeout = std::chrono::seconds(2);
// How long output may make no progress before it is given up, once the launcher has gone.
constexpr auto kStandstill = std::chrono::seconds(2);

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void tell(int socket, ShimMessage::Kind kind, int value, const std::string& text = "") {
  ShimMessage message{kind, value, now_ns()};
  const size_t text_bytes = std::min(text.size(), ShimMessage::kMaxTextBytes);
  iovec parts[] = {{&message, sizeof message}, {const_cast<char*>(text.data()), text_bytes}};
  msghdr packet = {};
  packet.msg_iov = parts;
  packet.msg_iovlen = 2;
  sendmsg(socket, &packet, MSG_NOSIGNAL);
}

// A line on standard error for what a body throws, as the launcher itself would end with it.
int run_body(const std::function<int()>& body) {
  const auto fail = [](const std::string& line, int exit_code) {
    std::fputs((line + "\n").c_str(), stderr);
    return exit_code;
  };
  try {
    return body();
  } catch (const UsageError& error) {
    return fail(error.what(), 2);
  } catch (const std::exception& error) {
    return fail(text("hasten: ", error.what()), 1);
  }
}

[[noreturn]] void run_worker(const ShimTask& task, WorkerOutput& output, pid_t shim) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != shim) _exit(1);  // the worker shim died before the line above
  // Only now is there a group to send signals to, so only now is the launcher notified of the worker.
  tell(task.socket, ShimMessage::Kind::kStarted, getpid());
  close(task.socket);
  output.connect_worker();
  sigprocmask(SIG_SETMASK, &task.worker_signal_mask, nullptr);
  _exit(run_body(task.body));
}

// Gives back everything that was inherited but what is needed: the worker shim must not hold the user's pipes, files
// and ports open.
void close_all_but(std::vector<int> needed) {
  std::sort(needed.begin(), needed.end());
  unsigned first = 0;
  for (const int descriptor : needed) {
    const auto kept = static_cast<unsigned>(descriptor);
    if (kept > first) close_range(first, kept - 1, 0);
    first = kept + 1;
  }
  close_range(first, ~0U, 0);
}

// A stopped process gets these only when it goes on.
bool asks_to_end(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

// A signal that is no request to end is the worker's alone. Its children seldom handle it, and would end.
bool is_for_group(int signal) {
  return asks_to_end(signal) || signal == SIGKILL || signal == SIGWINCH;
}

class Shim {
 public:
  Shim(const ShimTask& task, WorkerOutput& output, pid_t worker, int child_events)
      : task_(task), output_(output), worker_(worker), child_events_(child_events) {}

  [[noreturn]] void run() {
    while (true) {
      std::vector<pollfd> sources = {{abandoned_ ? -1 : task_.socket, POLLIN, 0}, {child_events_, POLLIN, 0}};
      output_.add_sources(sources);
      poll(sources.data(), sources.size(), timeout_ms());
      if (sources[1].revents != 0) reap();
      if (sources[0].revents != 0) obey();
      output_.pump();
      if (!group_gone_) look_for_group();
      if (group_gone_) end_output();
    }
  }

 private:
  int timeout_ms() const {
    std::optional<Clock::time_point> first = output_.deadline();
    const auto consider = [&](Clock::time_point time) { first = std::min(first.value_or(time), time); };
    if (killed_at_ && !group_gone_) consider(*killed_at_ + kKillTimeout);
    if (abandoned_ && group_gone_) consider(standstill_ends());
    if (!first) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*first - Clock::now()).count();
    return static_cast<int>(std::max<int64_t>(left, 0));
  }

  // Reads one order. Without one the launcher has gone, or has closed the socket to end the group.
  void obey() {
    int order = 0;
    if (recv(task_.socket, &order, sizeof order, 0) != sizeof order) {
      abandoned_ = true;
      return send_to_group(SIGKILL);
    }
    if (order != kDropOutput) return send_to_group(order);
    if (group_gone_) leave();
  }

  void send_to_group(int signal) {
    if (group_gone_) return;
    if (!is_for_group(signal)) {
      if (leader_alive_) kill(worker_, signal);
      return;
    }
    if (signal == SIGWINCH) output_.resize();
    if (signal == SIGKILL && !killed_at_) killed_at_ = Clock::now();
    kill(-worker_, signal);
    if (asks_to_end(signal)) kill(-worker_, SIGCONT);
    // If the launcher vanished at once, the worker may not have made its group yet.
    if (abandoned_ && leader_alive_) kill(worker_, SIGKILL);
  }

  // The worker shim is the subreaper of all that the worker starts: orphans of the group come to it, too.
  void reap() {
    signalfd_siginfo ignored;
    while (read(child_events_, &ignored, sizeof ignored) > 0) {
    }
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid != worker_) continue;
      leader_alive_ = false;
      tell(task_.socket, ShimMessage::Kind::kExited, status);
    }
  }

  void look_for_group() {
    const bool nobody = !leader_alive_ && kill(-worker_, 0) != 0 && errno == ESRCH;
    const bool held_by_kernel = killed_at_ && Clock::now() >= *killed_at_ + kKillTimeout;
    group_gone_ = nobody || held_by_kernel;
    gone_at_ = Clock::now();
  }

  // No process of the group can write any more. Written bytes still have to arrive.
  void end_output() {
    if (!told_gone_ && output_.finish()) {
      tell(task_.socket, ShimMessage::Kind::kGone, 0, output_.error_tail());
      told_gone_ = true;
    }
    if (told_gone_ && output_.written()) leave();
    if (abandoned_ && Clock::now() >= standstill_ends()) leave();
  }

  Clock::time_point standstill_ends() const { return std::max(output_.last_progress(), gone_at_) + kStandstill; }

  [[noreturn]] void leave() {
    if (abandoned_) task_.orphaned();
    _exit(0);
  }

  const ShimTask& task_;
  WorkerOutput& output_;
  const pid_t worker_;
  const int child_events_;
  bool leader_alive_ = true;
  bool group_gone_ = false;
  bool told_gone_ = false;
  bool abandoned_ = false;
  Clock::time_point gone_at_ = {};
  std::optional<Clock::time_point> killed_at_;
};

[[noreturn]] void give_up(const ShimTask& task, int reason) {
  tell(task.socket, ShimMessage::Kind::kNotStarted, reason);
  _exit(1);
}

[[noreturn]] void start_and_keep(const ShimTask& task) {
  setsid();  // Ctrl-C in the terminal is the launcher's to handle
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal(SIGCHLD, SIG_DFL);  // were it ignored, the worker's status would be lost
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);

  WorkerOutput::Options how = task.how;
  how.notice = [&](const std::string& line) { tell(task.socket, ShimMessage::Kind::kNotice, 0, line); };
  WorkerOutput output(task.output, std::move(how));
  if (output.error() != 0) give_up(task, output.error());
  const pid_t self = getpid();
  const pid_t worker = fork();
  if (worker == 0) run_worker(task, output, self);
  if (worker < 0) give_up(task, errno);
  prctl(PR_SET_NAME, "hasten-shim");  // after the fork: an in-program worker keeps its program's name
  output.close_worker_ends();
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const int child_events = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  std::vector<int> needed = output.descriptors();
  needed.insert(needed.end(), {task.socket, child_events});
  close_all_but(std::move(needed));
  Shim(task, output, worker, child_events).run();
}

}  // namespace

void keep(const ShimTask& task) {
  try {
    start_and_keep(task);
  } catch (const std::exception& error) {
    tell(task.socket, ShimMessage::Kind::kNotice, 0, text("its shim failed: ", error.what()));
  }
  _exit(1);
}

}  // namespace hasten::launcher
