// The search of programs in the folders of PATH, as a shell does it.
#pragma once

#include <string>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::core {

/// Returns the folders of PATH, which are the system's own if it is not set; an empty one is ".".
std::vector<std::string> path_folders(const Environment& environment);

/// Returns true for a file that this process may execute.
bool is_executable(const std::string& path);

/// Returns the path of the first executable `name` in those folders, "" if there is none. A name with a "/" is a path.
std::string find_on_path(const std::string& name, const Environment& environment);

}  // namespace hasten::core
