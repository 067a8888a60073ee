// The TensorBoard tracker: event files in the run's folder, as torch.utils.tensorboard writes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/journal/tracker.h"

namespace hasten::tracking {

/// Makes the tracker. Option double_scalars (false): numbers with 53 bits. Throws: UsageError for an option of another
/// kind.
std::unique_ptr<Tracker> make_tensorboard(const core::Value& options, const Environment& environment);
std::vector<std::string> tensorboard_options();

/// YAML text of a tree of settings, as hparams.yml has it.
std::string to_yaml(const core::Value& config);

}  // namespace hasten::tracking
