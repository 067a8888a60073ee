// `hasten launch --explain`: settings with their values and sources, those that are not the default first.
#pragma once

#include <string>

#include "hasten/core/env.h"
#include "hasten/launch/base/machine.h"
#include "hasten/launch/plan/settings.h"

namespace hasten::cli {

/// A table with one line a setting, by the groups of the help: those with another source than the default. With `all`
/// those with their defaults follow. Without it the last line counts them.
std::string explained(const launcher::LaunchSettings& settings, bool all);

/// A line for each of this machine's processes, with the GPU that it takes. "" on a machine without a GPU.
std::string explained_devices(const launcher::LaunchSettings& settings, const launcher::Machine& machine,
                              int num_local_processes, const Environment& environment);

}  // namespace hasten::cli
