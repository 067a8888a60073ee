// A value of a configuration file: a scalar, a list or a mapping, as YAML 1.1 and JSON both have them.
//
// A type of our own, so that no public header names a YAML or JSON library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hasten::launcher {

struct ConfigValue;
struct ConfigEntry;
using ConfigList = std::vector<ConfigValue>;
/// In the order of the file.
using ConfigMap = std::vector<ConfigEntry>;

struct ConfigValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, ConfigList, ConfigMap> held;

  template <class T>
  const T* as() const {
    return std::get_if<T>(&held);
  }
  bool is_null() const { return as<std::monostate>() != nullptr; }
  bool is_text(std::string_view text) const {
    const auto* held_text = as<std::string>();
    return held_text != nullptr && *held_text == text;
  }
};

struct ConfigEntry {
  std::string key;
  ConfigValue value;
};

/// Returns the value of `key`, nullptr if it is not there.
const ConfigValue* find_value(const ConfigMap& map, std::string_view key);

/// Gives `key` a value, at the end if it is new.
void set_value(ConfigMap& map, std::string_view key, ConfigValue value);

/// Returns the text of Python's str(), which is how Accelerate passes values on: True, 1000.0, text. Lists are
/// separated by commas; nothing is "".
std::string python_text(const ConfigValue& value);

}  // namespace hasten::launcher
