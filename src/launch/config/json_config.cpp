// JSON configuration files, read and written; see config_syntax.h and config_file.h.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "hasten/core/text.h"
#include "hasten/launch/config/config_file.h"
#include "launch/config/config_syntax.h"

namespace hasten::launcher {
namespace {

using Json = nlohmann::ordered_json;

ConfigValue converted(const Json& json, const std::string& path) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    refuse_syntax(path, text("the number ", json.get<uint64_t>(), " is too large"));
  }
  if (json.is_number_integer()) return {json.get<int64_t>()};
  if (json.is_number()) return {json.get<double>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (json.is_array()) {
    ConfigList list;
    for (const Json& element : json) list.push_back(converted(element, path));
    return {std::move(list)};
  }
  if (!json.is_object()) return {};
  ConfigMap map;
  for (const auto& [key, value] : json.items()) map.emplace_back(key, converted(value, path));
  return {std::move(map)};
}

nlohmann::json sorted(const ConfigValue& value) {
  if (const auto* flag = value.as<bool>()) return *flag;
  if (const auto* number = value.as<int64_t>()) return *number;
  if (const auto* number = value.as<double>()) return *number;
  if (const auto* text = value.as<std::string>()) return *text;
  if (const auto* list = value.as<ConfigList>()) {
    auto array = nlohmann::json::array();
    for (const ConfigValue& element : *list) array.push_back(sorted(element));
    return array;
  }
  if (const auto* map = value.as<ConfigMap>()) {
    auto object = nlohmann::json::object();
    for (const auto& [key, held] : *map) object[key] = sorted(held);
    return object;
  }
  return nullptr;
}

}  // namespace

ConfigValue read_json(const std::string& content, const std::string& path) {
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  if (content.starts_with("\xef\xbb\xbf")) refuse_syntax(path, "it begins with a byte order mark, which is no JSON");
  try {
    const Json json = Json::parse(content, watch);
    if (!repeated.empty()) refuse_syntax(path, text("'", repeated, "' stands there twice"));
    return converted(json, path);
  } catch (const Json::parse_error& error) {
    refuse_syntax(path, text("it is no JSON (at byte ", error.byte, ")"));
  } catch (const Json::out_of_range&) {
    refuse_syntax(path, "a number in it is too large");
  }
}

std::string to_json(const ConfigMap& values) {
  return sorted({values}).dump(2, ' ', /*ensure_ascii=*/true) + "\n";
}

}  // namespace hasten::launcher
