// Threads that save in the background, behind those that compute.
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hasten::checkpoint {

/// Lowers the priority of the calling thread alone: Linux keeps a niceness for each.
inline void lower_priority() {
  constexpr int kNiceness = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNiceness);
}

}  // namespace hasten::checkpoint
