// `hasten launch --explain`: every setting, its value and where it came from.
#pragma once

#include <string>

#include "hasten/launch/plan/settings.h"

namespace hasten::cli {

/// A table with one line a setting, by the groups of the help.
std::string explained(const launcher::LaunchSettings& settings);

}  // namespace hasten::cli
