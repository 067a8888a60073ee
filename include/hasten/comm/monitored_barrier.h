// torch.distributed's monitored_barrier: a barrier over the store whose error names the ranks that do not come.
//
// It needs no connection between the ranks, so it tells which of them is missing when a backend hangs. An ordinary
// Group::barrier is far cheaper.
#pragma once

#include <chrono>

#include "hasten/comm/group/group.h"

namespace hasten::comm {

struct MonitoredBarrierOptions {
  /// How long the ranks wait; unset: the group's timeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Names all missing ranks, at the end of the timeout for each of them, instead of the first.
  bool wait_all_ranks = false;
};

/// Collective: yes. Blocks: until all ranks have come, or the timeout. Throws: CommError; on rank 0 it names the
/// missing ranks, on the others it repeats rank 0's words, or reports that rank 0 has not come.
void monitored_barrier(const Group& group, const MonitoredBarrierOptions& options = {});

}  // namespace hasten::comm
