// Values of a configuration file, as YAML 1.1 and JSON both have them, in Python's notation.
#pragma once

#include <string>

#include "hasten/core/value.h"

namespace hasten::launcher {

/// Returns the text of Python's str(), which is how Accelerate passes values on: True, 1000.0, text. Lists are
/// separated by commas; nothing is "".
std::string python_text(const core::Value& value);

}  // namespace hasten::launcher
