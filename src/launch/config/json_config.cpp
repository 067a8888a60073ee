// JSON configuration files, read and written; see config_syntax.h and config_file.h.
#include <algorithm>

#include "hasten/core/json.h"
#include "hasten/core/text.h"
#include "hasten/launch/config/config_file.h"
#include "launch/config/config_syntax.h"

namespace hasten::launcher {
namespace {

using core::Value;

void sort_keys(Value& value) {
  if (value.is_list()) {
    for (Value& element : value.as_list()) sort_keys(element);
  } else if (value.is_map()) {
    std::sort(value.as_map().begin(), value.as_map().end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [key, element] : value.as_map()) sort_keys(element);
  }
}

}  // namespace

Value read_json(const std::string& content, const std::string& path) {
  using Kind = core::JsonError::Kind;
  if (content.starts_with("\xef\xbb\xbf")) refuse_syntax(path, "it begins with a byte order mark, which is no JSON");
  core::JsonError error;
  auto value = core::read_json(content, {.unique_keys = true, .large_integers = false}, &error);
  if (value) return *std::move(value);
  if (error.kind == Kind::kRepeatedKey) refuse_syntax(path, text("'", error.subject, "' stands there twice"));
  if (error.kind == Kind::kLargeNumber) refuse_syntax(path, text("the number ", error.subject, " is too large"));
  refuse_syntax(path, text("it is no JSON (at byte ", error.offset + 1, ")"));
}

std::string to_json(const Value& values) {
  Value sorted = values;
  sort_keys(sorted);
  return core::write_json(sorted, {.indent = 2, .ascii = true}) + "\n";
}

}  // namespace hasten::launcher
