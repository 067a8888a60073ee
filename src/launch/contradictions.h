// Settings that exclude or need each other.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/machine.h"
#include "hasten/launch/settings.h"

namespace hasten::launcher {

/// Each a sentence without its full stop, with where the settings came from.
std::vector<std::string> contradictions(const LaunchSettings& settings, const Machine& machine);

}  // namespace hasten::launcher
