// The worker shim: the process between the launcher and one worker; see local_processes.h for the picture.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "launch/output/worker_output.h"

namespace hasten::launcher {

/// What a worker shim writes to its socket, one message a packet: this, and for some kinds a text behind it.
struct ShimMessage {
  enum class Kind : int32_t {
    kStarted,     ///< value = the worker's process id
    kNotStarted,  ///< value = errno of what failed
    kExited,      ///< value = waitpid's status, time_ns = when (steady clock)
    kGone,        ///< nobody of the group is left; text = the last lines of the worker's standard error
    kNotice,      ///< text = a line for the user
  };
  static constexpr size_t kMaxTextBytes = 64 * 1024;

  Kind kind;
  int32_t value;
  int64_t time_ns;
};

/// What the launcher writes: a signal's number, or this for "do not wait for whoever reads the output".
constexpr int kDropOutput = 0;

struct ShimTask {
  int socket = -1;                 ///< the worker shim's end, a SOCK_SEQPACKET
  sigset_t worker_signal_mask;     ///< what the worker's process is given
  std::function<int()> body;       ///< runs in the worker's process; its exit code
  std::function<void()> orphaned;  ///< runs in the worker shim when the launcher has vanished
  OutputPlan output = {};          ///< of the worker
  WorkerOutput::Options how = {};  ///< but for its notice, which goes to the launcher
};

/// Starts the worker, does what the socket says, moves the worker's output, and ends when nobody of the
/// worker's group is left and all output was written. To be called in a forked child.
[[noreturn]] void keep(const ShimTask& task);

}  // namespace hasten::launcher
