// The TensorBoard tracker: event files in the run's folder, as torch.utils.tensorboard writes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/journal/tracker.h"

namespace hasten::tracking {

/// Makes the tracker. Options, all but the first those of SummaryWriter:
/// - double_scalars (false): numbers with 53 bits.
/// - log_dir: another folder than the run's; comment ("") stands behind the run's folder without it.
/// - purge_step: values at this step and later in files that lie there count no more.
/// - max_queue (events that wait in memory; without a bound): the follower writes within a second as well.
/// - flush_secs (120): an upper bound that this second keeps; below 1 each event is written at once.
/// - filename_suffix (""): behind the event files' names.
/// Throws: UsageError for an option of another kind, or a number out of range.
std::unique_ptr<Tracker> make_tensorboard(const core::Value& options, const Environment& environment);
std::vector<std::string> tensorboard_options();

/// YAML text of a tree of settings, as hparams.yml has it.
std::string to_yaml(const core::Value& config);

}  // namespace hasten::tracking
