// `hasten launch --explain`: settings with their values and sources, those that are not the default first.
#pragma once

#include <string>

#include "hasten/launch/plan/settings.h"

namespace hasten::cli {

/// A table with one line a setting, by the groups of the help: those with another source than the default. With `all`
/// those with their defaults follow. Without it the last line counts them.
std::string explained(const launcher::LaunchSettings& settings, bool all);

}  // namespace hasten::cli
