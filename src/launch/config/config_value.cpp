// See config_value.h.
#include "hasten/launch/config/config_value.h"

#include "hasten/core/text.h"
#include "launch/base/python_number.h"

namespace hasten::launcher {

std::string python_text(const core::Value& value) {
  if (value.is_bool()) return value.as_bool() ? "True" : "False";
  if (value.is_int()) return text(value.as_int());
  if (value.is_number()) return python_repr(value.as_double());
  if (value.is_string()) return value.as_string();
  std::vector<std::string> parts;
  if (value.is_list()) {
    for (const core::Value& element : value.as_list()) parts.push_back(python_text(element));
  }
  return join(parts, ",");
}

}  // namespace hasten::launcher
