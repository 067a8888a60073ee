// `hasten to-fsdp2`: converts the FSDP section of an Accelerate configuration from version 1 to version 2.
#include <filesystem>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/core/value.h"
#include "hasten/launch/config/config_file.h"
#include "hasten/settings/fsdp_plugin.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

using core::Value;
using launcher::ConfigList;
using launcher::ConfigMap;
using launcher::ConfigValue;

const HelpText kHelp = {
    "hasten to-fsdp2 --config_file FILE (--overwrite | --output_file FILE)",
    "Converts the section fsdp_config of a configuration from FSDP 1 to FSDP 2. Other keys stay as they are.", ""};

Value value_of(const ConfigValue& value);

Value map_of(const ConfigMap& map) {
  Value own = Value::map();
  for (const auto& [key, each] : map) own[key] = value_of(each);
  return own;
}

Value value_of(const ConfigValue& value) {
  if (const auto* held = value.as<bool>()) return *held;
  if (const auto* held = value.as<int64_t>()) return *held;
  if (const auto* held = value.as<double>()) return *held;
  if (const auto* held = value.as<std::string>()) return *held;
  if (const auto* held = value.as<ConfigMap>()) return map_of(*held);
  if (const auto* held = value.as<ConfigList>()) {
    Value list = Value::list();
    for (const auto& each : *held) list.push_back(value_of(each));
    return list;
  }
  return nullptr;
}

ConfigValue config_of(const Value& value) {
  if (value.is_bool()) return {value.as_bool()};
  if (value.is_int()) return {value.as_int()};
  if (value.is_number()) return {value.as_double()};
  if (value.is_string()) return {value.as_string()};
  if (value.is_map()) {
    ConfigMap map;
    for (const auto& [key, each] : value.as_map()) map.push_back({key, config_of(each)});
    return {std::move(map)};
  }
  if (value.is_list()) {
    ConfigList list;
    for (const auto& each : value.as_list()) list.push_back(config_of(each));
    return {std::move(list)};
  }
  return {};
}

}  // namespace

int to_fsdp2(const std::vector<std::string>& words) {
  const auto line = read_options("to-fsdp2", to_fsdp2_options(), words);
  if (line.help) return std::cout << help_of(kHelp, to_fsdp2_options(), colours_wanted()), 0;
  if (!line.has("config_file")) throw UsageError({"to-fsdp2"}, "no configuration is named. Give --config_file.");
  const bool overwrite = line.has("overwrite");
  if (!overwrite && !line.has("output_file")) {
    throw UsageError({"to-fsdp2"}, "neither --overwrite nor --output_file is given. Give one of them.");
  }
  const std::string path = line.text("config_file");
  const std::string output = line.has("output_file") ? line.text("output_file") : path;
  if (!overwrite && std::filesystem::exists(output)) {
    throw UsageError({"to-fsdp2"}, "'", output, "' exists already. Give another --output_file, or --overwrite.");
  }
  const auto done = plan::convert_to_fsdp2(map_of(launcher::read_config_map(path)));
  for (const auto& note : done.notes) std::cerr << "[to-fsdp2] " << note << "\n";
  launcher::save_config(*config_of(done.config).as<ConfigMap>(), output);
  std::cout << "The configuration is in " << output << ".\n";
  return 0;
}

}  // namespace hasten::cli
