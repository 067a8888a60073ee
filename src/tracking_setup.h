// From the options of an Accelerator to its trackers.
#pragma once

#include "hasten/accelerator_options.h"
#include "hasten/core/env.h"
#include "hasten/process/process.h"
#include "hasten/tracking/trackers.h"

namespace hasten {

/// All ranks get one run id, which rank 0 makes. Collective: yes, if log_with names something. Blocks: then.
/// Throws: UsageError for an unknown tracker; CommError.
tracking::Trackers make_trackers(const AcceleratorOptions& options, const Environment& environment, const process::Process& process);

}  // namespace hasten
