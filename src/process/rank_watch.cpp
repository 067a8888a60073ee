// See rank_watch.h.
#include "hasten/process/rank_watch.h"

#include "hasten/process/rank_info.h"
#include "process/run_watch.h"

namespace hasten::process {

std::shared_ptr<const void> watch_rank(const Environment& environment) {
  if (!environment.has("HASTEN_FLIGHT_FD")) return nullptr;
  const RankInfo identity = read_rank_info(environment);
  const auto options = RunWatch::read_options(environment);
  if (identity.world_size == 1) return RunWatch::start_alone(identity, options, environment);
  return RunWatch::start(identity, 0, options, environment);
}

}  // namespace hasten::process
