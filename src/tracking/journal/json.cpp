// See json.h.
#include "tracking/journal/json.h"

#include <charconv>
#include <cmath>

#include "hasten/core/json.h"

namespace hasten::tracking {

void append_json_number(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += std::isnan(number) ? "\"NaN\"" : number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
  // So that it is read back as a double.
  if (std::string_view(digits, static_cast<size_t>(end - digits)).find_first_of(".e") == std::string_view::npos)
    out += ".0";
}

void append_json_number(std::string& out, int64_t number) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void append_json(std::string& out, const core::Value& value) {
  switch (value.kind()) {
    case core::Value::Kind::kNull:
      out += "null";
      return;
    case core::Value::Kind::kBool:
      out += value.as_bool() ? "true" : "false";
      return;
    case core::Value::Kind::kInt:
      return append_json_number(out, value.as_int());
    case core::Value::Kind::kDouble:
      return append_json_number(out, value.as_double());
    case core::Value::Kind::kString:
      return append_json_string(out, value.as_string());
    case core::Value::Kind::kList: {
      char separator = '[';
      for (const core::Value& element : value.as_list()) {
        out += separator;
        append_json(out, element);
        separator = ',';
      }
      out += value.empty() ? "[]" : "]";
      return;
    }
    case core::Value::Kind::kMap: {
      char separator = '{';
      for (const auto& [key, element] : value.as_map()) {
        out += separator;
        append_json_string(out, key);
        out += ':';
        append_json(out, element);
        separator = ',';
      }
      out += value.empty() ? "{}" : "}";
      return;
    }
  }
}

std::optional<core::Value> read_json(std::string_view text, std::string* reason) {
  core::JsonError error;
  auto value = core::read_json(text, {.python_numbers = true, .max_depth = 64}, &error);
  if (!value && reason != nullptr) *reason = error.text();
  return value;
}

}  // namespace hasten::tracking
