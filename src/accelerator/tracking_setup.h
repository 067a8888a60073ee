// From the options of an Accelerator to its trackers.
#pragma once

#include <memory>

#include "hasten/accelerator/options.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/core/env.h"
#include "hasten/process/process.h"
#include "hasten/tracking/run/trackers.h"
#include "hasten/training/stateful.h"

namespace hasten {

/// Gives all ranks one run id, which rank 0 makes. Collective: yes, if log_with names something. Blocks: then. Throws:
/// UsageError for an unknown tracker; CommError.
tracking::Trackers make_trackers(const AcceleratorOptions& options, const Environment& environment,
                                 const process::Process& process);

/// Puts the trackers' run and step into each checkpoint, and each save on the run's time line. It does so as long as
/// the result exists. Null if log_with names nothing.
std::shared_ptr<void> track_checkpoints(const tracking::Trackers& trackers, checkpoint::Checkpoints& checkpoints,
                                        training::StateRegistry& registry, const process::Process& process);

}  // namespace hasten
