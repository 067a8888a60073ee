// The launcher's side of the keepers: one socket each, and the launcher's own signals; see local_processes.h.
#include "hasten/launch/local_processes.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iostream>

#include "hasten/core/error.h"
#include "keeper.h"

namespace hasten::launcher {
namespace {

constexpr int kHandledSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// Those of the handled signals that the launcher was not told to ignore.
sigset_t signals_to_handle() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kHandledSignals) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  return signals;
}

void forget_pending(int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  const timespec at_once = {};
  sigtimedwait(&one, nullptr, &at_once);
}

// Blocks the handled signals and reads them from a file descriptor; puts the old mask back. SIGPIPE is
// blocked too: in `hasten launch … 2>&1 | tee log`, Ctrl-C ends tee first, and a line for the user must not
// end the launcher then.
class SignalWatch {
 public:
  SignalWatch() {
    const sigset_t signals = signals_to_handle();
    sigset_t blocked = signals;
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, &mask_before_);
    handle_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalWatch() {
    close(handle_);
    if (sigismember(&mask_before_, SIGPIPE) == 0) forget_pending(SIGPIPE);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int handle() const { return handle_; }
  const sigset_t& mask_before() const { return mask_before_; }

  // The next pending signal, 0 if there is none.
  int next() const {
    signalfd_siginfo info = {};
    return read(handle_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t mask_before_;
  int handle_ = -1;
};

void wait_for(pid_t keeper) {
  while (waitpid(keeper, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// The worker's process id, or why there is none (errno).
KeeperMessage first_message(int socket) {
  KeeperMessage message = {KeeperMessage::Kind::kNotStarted, ECHILD, 0};
  while (recv(socket, &message, sizeof message, 0) < 0 && errno == EINTR) {
  }
  return message;
}

int timeout_ms(std::optional<TimePoint> deadline, TimePoint now) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT32_MAX));
}

}  // namespace

struct LocalProcesses::Impl {
  struct Kept {
    int local_rank;
    pid_t keeper = 0;
    int socket = -1;
    pid_t worker = 0;
    bool exited = false;
  };
  struct TimedEvent {
    Event event;
    int64_t time_ns;
  };

  Body body;
  std::function<void()> orphaned;
  SignalWatch signals;
  std::vector<Kept> kept;          // those whose group may still have someone
  std::deque<TimedEvent> pending;  // read but not yet handed out

  Kept* find(int local_rank) {
    const auto found =
        std::find_if(kept.begin(), kept.end(), [=](const Kept& k) { return k.local_rank == local_rank; });
    return found == kept.end() ? nullptr : &*found;
  }

  // Returns 0, or why there is no keeper (errno).
  int start_keeper(int local_rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno;
    const pid_t keeper = fork();
    const int reason = errno;
    if (keeper == 0) become_keeper(ends[1], ends[0], local_rank);
    close(ends[1]);
    if (keeper < 0) {
      close(ends[0]);
      return reason;
    }
    kept.push_back({local_rank, keeper, ends[0]});
    return 0;
  }

  // In the keeper's process: the other keepers' sockets must close when the launcher dies, so no copy may
  // live on.
  [[noreturn]] void become_keeper(int socket, int launcher_end, int local_rank) {
    close(launcher_end);
    close(signals.handle());
    for (const Kept& other : kept) close(other.socket);
    keep({socket, signals.mask_before(), [this, local_rank] { return body(local_rank); }, orphaned});
  }

  // Reads the next thing the keeper has to say into `pending`.
  void read_from(Kept& from) {
    KeeperMessage message = {};
    const ssize_t size = recv(from.socket, &message, sizeof message, MSG_DONTWAIT);
    if (size == sizeof message) {
      from.exited = true;
      pending.push_back({{Event::Kind::kExited, from.local_rank, message.value}, message.time_ns});
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      on_keeper_end(from);
    }
  }

  void on_keeper_end(Kept& gone) {
    wait_for(gone.keeper);
    close(gone.socket);
    gone.socket = -1;
    if (!gone.exited) {
      // Someone killed the keeper, and by PR_SET_PDEATHSIG the worker with it; its children are still to end.
      kill(-gone.worker, SIGKILL);
      pending.push_back({{Event::Kind::kExited, gone.local_rank, SIGKILL}, INT64_MAX});
    }
    pending.push_back({{Event::Kind::kGone, gone.local_rank}, INT64_MAX});
  }

  void poll_once(int timeout) {
    std::vector<pollfd> sources = {{signals.handle(), POLLIN, 0}};
    for (const Kept& k : kept) sources.push_back({k.socket, POLLIN, 0});
    if (poll(sources.data(), sources.size(), timeout) <= 0) return;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (sources[i + 1].revents != 0) read_from(kept[i]);
    }
    std::erase_if(kept, [](const Kept& k) { return k.socket < 0; });
    // Several ends at once: the earliest is the root cause, whatever its rank.
    std::stable_sort(pending.begin(), pending.end(),
                     [](const TimedEvent& a, const TimedEvent& b) { return a.time_ns < b.time_ns; });
    for (int signal = 0; (signal = signals.next()) != 0;)
      pending.push_back({{Event::Kind::kSignal, 0, signal}, 0});
  }
};

LocalProcesses::LocalProcesses(Body body, std::function<void()> orphaned)
    : impl_(std::make_unique<Impl>(std::move(body), std::move(orphaned))) {}

LocalProcesses::~LocalProcesses() {
  for (const auto& kept : impl_->kept) close(kept.socket);
  for (const auto& kept : impl_->kept) wait_for(kept.keeper);
}

std::vector<pid_t> LocalProcesses::start(int num_workers) {
  const auto refuse = [&](int local_rank, int reason) {
    throw UsageError({"launch"}, "cannot start worker ", local_rank, " of ", num_workers, ": ",
                     std::strerror(reason),
                     ". Start fewer, or raise the limits (ulimit -u for processes, ulimit -n for files).");
  };
  // What stands in the buffers now would be written by every process that inherits them.
  std::cout.flush();
  std::fflush(nullptr);
  for (int local_rank = 0; local_rank < num_workers; ++local_rank) {
    if (const int reason = impl_->start_keeper(local_rank)) refuse(local_rank, reason);
  }
  // All keepers are on their way before the first is waited for.
  std::vector<pid_t> pids;
  for (Impl::Kept& kept : impl_->kept) {
    const KeeperMessage message = first_message(kept.socket);
    if (message.kind != KeeperMessage::Kind::kStarted) refuse(kept.local_rank, message.value);
    kept.worker = message.value;
    pids.push_back(kept.worker);
  }
  return pids;
}

void LocalProcesses::signal(int local_rank, int signal) {
  if (const auto* kept = impl_->find(local_rank)) send(kept->socket, &signal, sizeof signal, MSG_NOSIGNAL);
}

Event LocalProcesses::wait(std::optional<TimePoint> deadline) {
  while (impl_->pending.empty()) {
    if (deadline && now() >= *deadline) return {};
    impl_->poll_once(timeout_ms(deadline, now()));
  }
  const Event event = impl_->pending.front().event;
  impl_->pending.pop_front();
  return event;
}

}  // namespace hasten::launcher
