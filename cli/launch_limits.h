// Options that `hasten launch` parses but does not support: it refuses them by name.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/plan/settings.h"

namespace hasten::cli {

/// A sentence for every option that cannot be followed.
std::vector<std::string> what_cannot_be_done(const launcher::LaunchSettings& settings);

}  // namespace hasten::cli
