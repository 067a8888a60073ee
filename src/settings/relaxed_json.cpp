// See relaxed_json.h.
#include "settings/relaxed_json.h"

#include "hasten/core/json.h"
#include "settings/origin.h"

namespace hasten::plan {

core::Value parse_relaxed_json(std::string_view text, const std::string& name) {
  core::JsonError error;
  auto value = core::read_json(text, {.comments = true, .unique_keys = true, .max_depth = 200}, &error);
  if (value) return *std::move(value);
  throw DataError(kDeepSpeed, name, name, ":", error.line, ":", error.column, ": ", error.found, "; expected ",
                  error.expected, ".");
}

}  // namespace hasten::plan
