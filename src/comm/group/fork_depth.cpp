// See fork_depth.h.
#include "comm/group/fork_depth.h"

#include <pthread.h>

#include <atomic>

namespace hasten::comm {
namespace {

std::atomic<int> depth = 0;

}  // namespace

int fork_depth() noexcept {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++depth; });
  (void)watched;
  return depth.load(std::memory_order_relaxed);
}

void throw_forked(const Origin& origin, CallName call) {
  throw UsageError(origin, name_of(call), " in a child that fork() made of this rank. A child is no rank: it has none ",
                   "of the threads that the rank's connections need. Call collectives in the rank alone. Start ",
                   "programs by posix_spawn or exec, and work of a child's own before Process is made.");
}

}  // namespace hasten::comm
