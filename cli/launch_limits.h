// What `hasten launch` understands but cannot do: it refuses by name instead of doing something else.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/plan/settings.h"

namespace hasten::cli {

/// A sentence for every option that cannot be followed.
std::vector<std::string> what_cannot_be_done(const launcher::LaunchSettings& settings);

}  // namespace hasten::cli
