// See rank_watch.h.
#include "hasten/process/rank_watch.h"

#include "hasten/process/rank_info.h"
#include "process/run_watch.h"

namespace hasten::process {

std::shared_ptr<const void> watch_rank(const Environment& environment) {
  if (!environment.has("HASTEN_FLIGHT_FD")) return nullptr;
  const RankInfo identity = read_rank_info(environment);
  if (identity.world_size == 1) return nullptr;
  return RunWatch::start(identity, 0, RunWatch::read_options(environment), environment);
}

}  // namespace hasten::process
