// The questions of `hasten config`, whose answers are a configuration file of Accelerate's.
#pragma once

#include "asker.h"
#include "hasten/core/value.h"

namespace hasten::cli {

/// Asks the questions of such a file. A question depends on the answers before it. `precision`: the answer to that
/// question if it was given before, else "".
core::Value interview(Asker& asker, const std::string& precision = "");

}  // namespace hasten::cli
