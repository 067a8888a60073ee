// See tracking_setup.h.
#include "tracking_setup.h"

#include "hasten/comm/nested/objects.h"

namespace hasten {

tracking::Trackers make_trackers(const AcceleratorOptions& options, const Environment& environment, const process::Process& process) {
  tracking::TrackersSetup setup{.log_with = options.log_with,
                                .options = options.tracking,
                                .logging_dir = options.project.logging_dir,
                                .rank = process.rank(),
                                .world_size = process.world_size(),
                                .run_key = {},
                                .environment = environment};
  if (!setup.log_with.empty()) {
    setup.run_key = tracking::make_run_id();
    if (process.world_size() > 1) setup.run_key = comm::gather_object(process.group(), setup.run_key).front();
  }
  return tracking::Trackers(std::move(setup));
}

}  // namespace hasten
