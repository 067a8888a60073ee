// Signals that are blocked and read instead, from a descriptor that works with poll().
#pragma once

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace hasten::launcher {

/// While it exists, `blocked` are blocked, and those of `readable` among them can be read. Its end gives the old mask
/// back.
class SignalQueue {
 public:
  SignalQueue(const sigset_t& blocked, const sigset_t& readable) {
    sigprocmask(SIG_BLOCK, &blocked, &mask_before_);
    handle_ = signalfd(-1, &readable, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalQueue() {
    close(handle_);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int handle() const { return handle_; }
  const sigset_t& mask_before() const { return mask_before_; }

  /// Returns the next pending signal, 0 if there is none.
  int next() const {
    signalfd_siginfo info = {};
    return read(handle_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t mask_before_;
  int handle_ = -1;
};

}  // namespace hasten::launcher
