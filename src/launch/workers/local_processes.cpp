// The launcher's side of the worker shims: a socket for each, and the launcher's own signals. See local_processes.h.
#include "launch/workers/local_processes.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
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
#include "launch/base/signal_queue.h"
#include "launch/workers/worker_shim.h"

namespace hasten::launcher {
namespace {

// Those that the launcher does not ignore.
sigset_t not_ignored(const std::vector<int>& requested) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : requested) {
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
  explicit SignalWatch(const std::vector<int>& requested) : SignalWatch(readable(requested)) {}
  ~SignalWatch() {
    if (sigismember(&mask_before(), SIGPIPE) == 0) forget_pending(SIGPIPE);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int handle() const { return queue_.handle(); }
  const sigset_t& mask_before() const { return queue_.mask_before(); }
  // The next pending signal, 0 if there is none.
  int next() const { return queue_.next(); }

 private:
  explicit SignalWatch(const sigset_t& signals) : queue_(with(signals, SIGPIPE), signals) {}

  static sigset_t with(sigset_t signals, int one) {
    sigaddset(&signals, one);
    return signals;
  }
  static sigset_t readable(const std::vector<int>& requested) { return with(not_ignored(requested), SIGWINCH); }

  SignalQueue queue_;
};

void wait_for(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

struct Packet {
  ShimMessage message = {ShimMessage::Kind::kNotStarted, ECHILD, 0};
  std::string text;
};

// Returns nothing if there is none yet (with MSG_DONTWAIT in `flags`); a Packet of kind kNotStarted at the end.
std::optional<Packet> receive(int socket, int flags) {
  Packet packet;
  packet.text.resize(ShimMessage::kMaxTextBytes);
  iovec parts[] = {{&packet.message, sizeof packet.message}, {packet.text.data(), packet.text.size()}};
  msghdr header = {};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  ssize_t size = 0;
  do {
    size = recvmsg(socket, &header, flags);
    // ECONNRESET means that the worker shim has ended without reading our last order. Its own words come after it.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0 && errno == EAGAIN) return std::nullopt;
  const auto header_size = static_cast<ssize_t>(sizeof packet.message);
  if (size < header_size) return Packet{};
  packet.text.resize(static_cast<size_t>(size - header_size));
  return packet;
}

int timeout_ms(std::optional<TimePoint> deadline, TimePoint now) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT32_MAX));
}

}  // namespace

struct LocalProcesses::Impl {
  struct Shim {
    int local_rank;
    pid_t pid = 0;
    int socket = -1;
    pid_t worker = 0;
    bool exited = false;
    bool gone = false;
  };
  struct TimedEvent {
    Event event;
    int64_t time_ns;
  };

  Impl(Body worker_body, LocalProcessesOptions requested)
      : body(std::move(worker_body)), options(std::move(requested)), signals(options.signals) {}

  Body body;
  LocalProcessesOptions options;
  SignalWatch signals;
  OutputTurns turns{OutputLock::make_shared_by_forks(), OutputLock::make_shared_by_forks()};
  std::vector<Shim> shims;         // all worker shims that have not ended; one whose worker is gone still writes output
  std::deque<TimedEvent> pending;  // read but not yet returned
  std::vector<std::string> error_tails;
  int num_end_signals = 0;  // that requested the launcher's end

  Shim* find(int local_rank) {
    const auto found =
        std::find_if(shims.begin(), shims.end(), [=](const Shim& k) { return k.local_rank == local_rank && !k.gone; });
    return found == shims.end() ? nullptr : &*found;
  }

  // Returns 0, or why there is no worker shim (errno).
  int start_shim(int local_rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno;
    const pid_t pid = fork();
    const int reason = errno;
    if (pid == 0) run_shim(ends[1], ends[0], local_rank);
    close(ends[1]);
    if (pid < 0) {
      close(ends[0]);
      return reason;
    }
    shims.push_back({local_rank, pid, ends[0]});
    return 0;
  }

  // In the worker shim's process: the other worker shims' sockets must close when the launcher ends, so no copy may
  // remain.
  [[noreturn]] void run_shim(int socket, int launcher_end, int local_rank) {
    close(launcher_end);
    close(signals.handle());
    for (const Shim& other : shims) close(other.socket);
    keep({.socket = socket,
          .worker_signal_mask = signals.mask_before(),
          .body = [this, local_rank] { return body(local_rank); },
          .orphaned = options.orphaned,
          .output = options.output(local_rank),
          .how = {.spill_folder = options.spill_folder, .turns = turns}});
  }

  // The worker's process id, or why there is none (errno).
  ShimMessage first_message(const Shim& from) const {
    while (true) {
      const Packet packet = receive(from.socket, 0).value_or(Packet{});
      if (packet.message.kind != ShimMessage::Kind::kNotice) return packet.message;
      options.notice(from.local_rank, packet.text);
    }
  }

  // Reads the worker shim's next message into `pending`.
  void read_from(Shim& from) {
    const auto packet = receive(from.socket, MSG_DONTWAIT);
    if (!packet) return;
    const ShimMessage& message = packet->message;
    switch (message.kind) {
      case ShimMessage::Kind::kExited:
        from.exited = true;
        pending.push_back({{Event::Kind::kExited, from.local_rank, message.value}, message.time_ns});
        return;
      case ShimMessage::Kind::kGone:
        error_tails[static_cast<size_t>(from.local_rank)] = packet->text;
        return on_gone(from);
      case ShimMessage::Kind::kNotice:
        return options.notice(from.local_rank, packet->text);
      default:
        return on_shim_exit(from);
    }
  }

  // `exited_ns` is for a worker whose end was not reported. A process that the kernel holds does not even end when it
  // is killed.
  void on_gone(Shim& from, int64_t exited_ns = INT64_MAX) {
    if (!from.exited) pending.push_back({{Event::Kind::kExited, from.local_rank, SIGKILL}, exited_ns});
    pending.push_back({{Event::Kind::kGone, from.local_rank}, INT64_MAX});
    from.exited = from.gone = true;
  }

  void on_shim_exit(Shim& ended) {
    wait_for(ended.pid);
    close(ended.socket);
    ended.socket = -1;
    if (ended.gone) return;
    // A signal killed the worker shim, and by PR_SET_PDEATHSIG the worker with it. Its children are still to end. No
    // other worker's end can have caused that, but it may have caused others: it comes first.
    kill(-ended.worker, SIGKILL);
    on_gone(ended, 0);
  }

  void order(const Shim& shim, int signal) const {
    send(shim.socket, &signal, sizeof signal, MSG_NOSIGNAL);
    kill(shim.pid, SIGCONT);  // in case it was stopped
  }

  void poll_once(int timeout, bool with_others = false) {
    std::vector<pollfd> sources = {{signals.handle(), POLLIN, 0}};
    for (const Shim& k : shims) sources.push_back({k.socket, POLLIN, 0});
    if (with_others && options.add_sources) options.add_sources(sources);
    if (poll(sources.data(), sources.size(), timeout) <= 0) return;
    const auto first_other = sources.begin() + static_cast<std::ptrdiff_t>(1 + shims.size());
    if (std::any_of(first_other, sources.end(), [](const pollfd& source) { return source.revents != 0; })) {
      pending.push_back({{Event::Kind::kOther}, 0});
    }
    for (size_t i = 0; i < shims.size(); ++i) {
      if (sources[i + 1].revents != 0) read_from(shims[i]);
    }
    std::erase_if(shims, [](const Shim& k) { return k.socket < 0; });
    // Several ends at once: the earliest is the root cause, whatever its rank.
    std::stable_sort(pending.begin(), pending.end(),
                     [](const TimedEvent& a, const TimedEvent& b) { return a.time_ns < b.time_ns; });
    for (int signal = 0; (signal = signals.next()) != 0;) take_signal(signal);
  }

  void take_signal(int signal) {
    if (ends_run(signal)) ++num_end_signals;
    if (signal != SIGWINCH) return pending.push_back({{Event::Kind::kSignal, 0, signal}, 0});
    for (const Shim& k : shims) order(k, SIGWINCH);
  }
};

std::vector<int> LocalProcessesOptions::default_signals() {
  return {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};
}

LocalProcesses::LocalProcesses(Body body, LocalProcessesOptions options)
    : impl_(std::make_unique<Impl>(std::move(body), std::move(options))) {}

LocalProcesses::~LocalProcesses() {
  for (const auto& shim : impl_->shims) {
    close(shim.socket);
    kill(shim.pid, SIGCONT);
  }
  for (const auto& shim : impl_->shims) wait_for(shim.pid);
}

std::vector<pid_t> LocalProcesses::start(int num_workers) {
  const auto refuse = [&](int local_rank, int reason) {
    throw UsageError({"launch"}, "cannot start worker ", local_rank, " of ", num_workers, ": ", std::strerror(reason),
                     ". Start fewer, or raise the limits (ulimit -u for processes, ulimit -n for files).");
  };
  // Every process that inherits the buffers would write their present contents.
  std::cout.flush();
  std::fflush(nullptr);
  impl_->error_tails.assign(static_cast<size_t>(num_workers), "");
  for (int local_rank = 0; local_rank < num_workers; ++local_rank) {
    if (const int reason = impl_->start_shim(local_rank)) refuse(local_rank, reason);
  }
  // All worker shim are on their way before the first is waited for.
  std::vector<pid_t> pids;
  for (Impl::Shim& shim : impl_->shims) {
    if (shim.gone) continue;  // of an earlier start
    const ShimMessage message = impl_->first_message(shim);
    if (message.kind != ShimMessage::Kind::kStarted) refuse(shim.local_rank, message.value);
    shim.worker = message.value;
    pids.push_back(shim.worker);
  }
  return pids;
}

pid_t LocalProcesses::start_one(int local_rank) {
  const auto refuse = [&](int reason) {
    throw UsageError({"launch"}, "cannot start worker ", local_rank, " again: ", std::strerror(reason),
                     ". Raise the limits (ulimit -u for processes, ulimit -n for files).");
  };
  std::cout.flush();
  std::fflush(nullptr);
  impl_->error_tails[static_cast<size_t>(local_rank)].clear();
  if (const int reason = impl_->start_shim(local_rank)) refuse(reason);
  Impl::Shim& shim = impl_->shims.back();
  const ShimMessage message = impl_->first_message(shim);
  if (message.kind != ShimMessage::Kind::kStarted) refuse(message.value);
  return shim.worker = message.value;
}

void LocalProcesses::signal(int local_rank, int signal) {
  if (const auto* shim = impl_->find(local_rank)) impl_->order(*shim, signal);
}

Event LocalProcesses::wait(std::optional<TimePoint> deadline) {
  while (impl_->pending.empty()) {
    if (deadline && now() >= *deadline) return {};
    impl_->poll_once(timeout_ms(deadline, now()), /*with_others=*/true);
  }
  const Event event = impl_->pending.front().event;
  impl_->pending.pop_front();
  return event;
}

void LocalProcesses::finish_output(std::chrono::duration<double> grace) {
  const auto grace_ends = now() + std::chrono::duration_cast<TimePoint::duration>(grace);
  const int num_before = impl_->num_end_signals;
  for (bool dropped = false; !impl_->shims.empty();) {
    const bool limited = num_before > 0 && !dropped;
    impl_->poll_once(limited ? timeout_ms(grace_ends, now()) : -1);
    const bool late = limited && now() >= grace_ends;
    if (dropped || (impl_->num_end_signals == num_before && !late)) continue;
    for (const auto& shim : impl_->shims) impl_->order(shim, kDropOutput);
    dropped = true;
  }
}

std::string LocalProcesses::error_tail(int local_rank) const {
  return impl_->error_tails[static_cast<size_t>(local_rank)];
}

}  // namespace hasten::launcher
