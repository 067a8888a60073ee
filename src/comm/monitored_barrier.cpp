// See hasten/comm/monitored_barrier.h. The barrier itself is comm/c10d/monitored_barrier.h, that of the Python module.
#include "hasten/comm/monitored_barrier.h"

#include "comm/c10d/monitored_barrier.h"
#include "hasten/core/text.h"

namespace hasten::comm {

void monitored_barrier(const Group& group, const MonitoredBarrierOptions& options) {
  const auto store = group.store();
  if (!store || group.world_size() == 1) return;
  const Store keys = store->scoped(text("barriers of ", group.options().name));
  // Each rank counts its own calls, which gives all the same number.
  const int64_t call = keys.add(text("calls of ", group.rank()), 1);
  pass_monitored_barrier({.keys = keys.scoped(text(call)),
                          .rank = group.rank(),
                          .world_size = group.world_size(),
                          .timeout = options.timeout.value_or(group.options().timeout),
                          .wait_all_ranks = options.wait_all_ranks});
}

}  // namespace hasten::comm
