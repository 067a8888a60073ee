// Settings that exclude or need each other.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/base/machine.h"
#include "hasten/launch/plan/settings.h"

namespace hasten::launcher {

/// Each a sentence without its full stop, with where the settings came from.
std::vector<std::string> option_conflicts(const LaunchSettings& settings, const Machine& machine);

}  // namespace hasten::launcher
