// `hasten to-fsdp2`: converts the FSDP section of an Accelerate configuration from version 1 to version 2.
#include <filesystem>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/launch/config/config_file.h"
#include "hasten/settings/fsdp_plugin.h"
#include "help.h"
#include "options.h"

namespace hasten::cli {
namespace {

const HelpText kToFsdp2Help = {
    "hasten to-fsdp2 --config_file FILE (--overwrite | --output_file FILE)",
    "Converts the section fsdp_config of a configuration from FSDP 1 to FSDP 2. Other keys stay as they are.", ""};

}  // namespace

int to_fsdp2(const std::vector<std::string>& words) {
  const auto line = read_options("to-fsdp2", to_fsdp2_options(), words);
  if (line.help) return std::cout << help_of(kToFsdp2Help, to_fsdp2_options(), colours_wanted()), 0;
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
  const auto done = plan::convert_to_fsdp2(launcher::read_config_map(path));
  for (const auto& note : done.notes) std::cerr << "[to-fsdp2] " << note << "\n";
  launcher::save_config(done.config, output);
  std::cout << "The configuration is in " << output << ".\n";
  return 0;
}

}  // namespace hasten::cli
