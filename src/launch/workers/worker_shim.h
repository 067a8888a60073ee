// The worker shim: the process between the launcher and one worker; see local_processes.h for the picture.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "launch/output/worker_output.h"

namespace hasten::launcher {

/// A worker shim's message to its socket, one a packet: this, and for some kinds a text behind it.
struct ShimMessage {
  enum class Kind : int32_t {
    kStarted,     ///< value = the worker's process id
    kNotStarted,  ///< value = errno of what failed
    kExited,      ///< value = waitpid's status, time_ns = when (steady clock)
    kGone,        ///< no process of the group is left; text = the last lines of the worker's standard error
    kNotice,      ///< text = a line for the user
  };
  static constexpr size_t kMaxTextBytes = 64 * 1024;

  Kind kind;
  int32_t value;
  int64_t time_ns;
};

/// The launcher's message: a signal's number, or this for "do not wait for the reader of the output".
constexpr int kDropOutput = 0;

struct ShimTask {
  int socket = -1;                 ///< the worker shim's end, a SOCK_SEQPACKET
  sigset_t worker_signal_mask;     ///< the mask of the worker's process
  std::function<int()> body;       ///< runs in the worker's process; its exit code
  std::function<void()> orphaned;  ///< runs in the worker shim when the launcher has vanished
  OutputPlan output = {};          ///< of the worker
  WorkerOutput::Options how = {};  ///< but for its notice, which goes to the launcher
};

/// Starts the worker, carries out the socket's orders, and moves the worker's output. It ends when no process of the
/// worker's group is left and all output was written. To be called in a forked child.
[[noreturn]] void keep(const ShimTask& task);

}  // namespace hasten::launcher
