// The barrier that names ranks which do not come, over a store, with the words of libtorch's Gloo.
#pragma once

#include <chrono>
#include <string>

#include "hasten/comm/store/store.h"

namespace hasten::comm {

struct MonitoredBarrier {
  /// Its own on each call, the same on all ranks.
  Store keys;
  int rank;
  int world_size;
  std::chrono::milliseconds timeout;
  /// Names all missing ranks instead of the first.
  bool wait_all_ranks = false;
};

/// Collective: yes. Blocks: until all ranks have come, or the timeout. Throws: CommError; on rank 0 it names the
/// missing ranks, on the others it says that rank 0 gave up, or has not come.
void pass_monitored_barrier(const MonitoredBarrier& barrier);

}  // namespace hasten::comm
