// Handlers that count; see stop.h. The data of a signal handler is at namespace scope, since there is no other way: a
// signal is the process's.
#include "hasten/process/stop.h"

#include <torch/types.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::process {
namespace {

struct Watched {
  std::atomic<int64_t> arrivals = 0;
  struct sigaction previous = {};  // set before the handler is, then only read while it is
  int num_users = 0;               // under the mutex
};

static_assert(std::atomic<int64_t>::is_always_lock_free, "a signal handler counts with it");

std::array<Watched, NSIG> watched;
std::mutex watched_mutex;

extern "C" void hasten_note_stop_signal(int signal, siginfo_t* info, void* context) {
  Watched& it = watched[static_cast<size_t>(signal)];
  it.arrivals.fetch_add(1, std::memory_order_relaxed);
  if ((it.previous.sa_flags & SA_SIGINFO) != 0) {
    if (it.previous.sa_sigaction != nullptr) it.previous.sa_sigaction(signal, info, context);
  } else if (it.previous.sa_handler != SIG_DFL && it.previous.sa_handler != SIG_IGN) {
    it.previous.sa_handler(signal);
  }
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == hasten_note_stop_signal;
}

void watch(int signal) {
  Watched& it = watched[static_cast<size_t>(signal)];
  struct sigaction now = {};
  if (sigaction(signal, nullptr, &now) == 0 && is_ours(now)) {
    ++it.num_users;
    return;
  }
  it.previous = now;
  struct sigaction ours = {};
  ours.sa_sigaction = hasten_note_stop_signal;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  if (sigaction(signal, &ours, nullptr) != 0) {
    throw UsageError(Origin{"state"}, "StopSignals: signal ", signal, " cannot be caught: ", std::strerror(errno),
                     ". Leave it out.");
  }
  it.num_users = 1;
}

void unwatch(int signal) {
  Watched& it = watched[static_cast<size_t>(signal)];
  struct sigaction now = {};
  if (--it.num_users > 0 || sigaction(signal, nullptr, &now) != 0 || !is_ours(now)) return;
  sigaction(signal, &it.previous, nullptr);
}

int64_t arrivals_of(int signal) {
  return watched[static_cast<size_t>(signal)].arrivals.load(std::memory_order_relaxed);
}

}  // namespace

StopSignals::StopSignals(std::vector<int> signals) : signals_(std::move(signals)) {
  const std::lock_guard lock(watched_mutex);
  size_t num_watched = 0;
  try {
    for (const int signal : signals_) {
      if (signal < 1 || signal >= NSIG) {
        throw UsageError(Origin{"state"}, "StopSignals: there is no signal ", signal, ".");
      }
      before_.push_back(arrivals_of(signal));
      watch(signal);
      ++num_watched;
    }
  } catch (...) {
    while (num_watched > 0) unwatch(signals_[--num_watched]);
    throw;
  }
}

StopSignals::~StopSignals() {
  // The signal that one rank had may still be on its way to this one, which ends in order without it.
  if (stopping_) return;
  const std::lock_guard lock(watched_mutex);
  for (const int signal : signals_) unwatch(signal);
}

bool StopSignals::received() const noexcept {
  for (size_t i = 0; i < signals_.size(); ++i) {
    if (arrivals_of(signals_[i]) > before_[i]) return true;
  }
  return false;
}

bool StopSignals::should_stop(const comm::Group& group) const {
  stopping_ = stopping_ || received();
  if (group.world_size() > 1) {
    const at::Tensor any = torch::tensor(stopping_ ? 1 : 0);
    const comm::Purpose purpose("should_stop");
    group.all_reduce_(any, comm::ReduceOp::kMax);
    stopping_ = any.item<int>() > 0;
  }
  return stopping_;
}

}  // namespace hasten::process
