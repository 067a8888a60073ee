// JSON as people write it in configuration files: with comments and trailing commas, but without repeated keys.
#pragma once

#include <string>
#include <string_view>

#include "hasten/core/value.h"

namespace hasten::plan {

/// Reads JSON text; comments (//, #, /* */) and commas before a closing bracket are allowed. `name` appears in messages
/// as the source of the text. Whole numbers that fit become integers, 2e8 a double.
/// Throws: DataError with line and column, also for a key that occurs twice in one map.
core::Value parse_relaxed_json(std::string_view text, const std::string& name);

}  // namespace hasten::plan
