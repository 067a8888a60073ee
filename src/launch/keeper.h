// The keeper: the process between the launcher and one worker; see local_processes.h for the picture.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>

namespace hasten::launcher {

/// What a keeper writes to its socket, one message a packet. The launcher writes plain ints: signal numbers.
struct KeeperMessage {
  enum class Kind : int32_t {
    kStarted,     ///< value = the worker's process id
    kNotStarted,  ///< value = errno of fork
    kExited,      ///< value = waitpid's status, time_ns = when (steady clock)
  };
  Kind kind;
  int32_t value;
  int64_t time_ns;
};

struct KeeperTask {
  int socket = -1;                 ///< the keeper's end, a SOCK_SEQPACKET
  sigset_t worker_signal_mask;     ///< what the worker's process is given
  std::function<int()> body;       ///< runs in the worker's process; its exit code
  std::function<void()> orphaned;  ///< runs in the keeper when the launcher has vanished
};

/// Starts the worker, does what the socket says, and ends when nobody of the worker's group is left.
/// To be called in a forked child.
[[noreturn]] void keep(const KeeperTask& task);

}  // namespace hasten::launcher
