// Looking into configuration values; see config_value.h.
#include "hasten/launch/config/config_value.h"

#include <algorithm>
#include <cmath>

#include "hasten/core/text.h"
#include "launch/base/python_number.h"

namespace hasten::launcher {

const ConfigValue* find_value(const ConfigMap& map, std::string_view key) {
  const auto found = std::find_if(map.begin(), map.end(), [=](const ConfigEntry& entry) { return entry.key == key; });
  return found == map.end() ? nullptr : &found->value;
}

void set_value(ConfigMap& map, std::string_view key, ConfigValue value) {
  const auto found = std::find_if(map.begin(), map.end(), [=](const ConfigEntry& entry) { return entry.key == key; });
  if (found == map.end()) {
    map.emplace_back(std::string(key), std::move(value));
  } else {
    found->value = std::move(value);
  }
}

std::string python_text(const ConfigValue& value) {
  if (const auto* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const auto* number = value.as<int64_t>()) return text(*number);
  if (const auto* number = value.as<double>()) return python_repr(*number);
  if (const auto* words = value.as<std::string>()) return *words;
  std::vector<std::string> parts;
  if (const auto* list = value.as<ConfigList>()) {
    for (const ConfigValue& element : *list) parts.push_back(python_text(element));
  }
  return join(parts, ",");
}

}  // namespace hasten::launcher
