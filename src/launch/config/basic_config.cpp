// See basic_config.h.
#include "hasten/launch/config/basic_config.h"

#include <filesystem>

#include "hasten/launch/base/machine.h"
#include "hasten/launch/config/config_file.h"

namespace hasten {

std::optional<std::string> write_basic_config(const BasicConfigOptions& options, const Environment& environment) {
  const std::string path = options.path.empty() ? launcher::default_config_path(environment) : options.path;
  if (std::filesystem::exists(path)) return std::nullopt;
  const int num_gpus = launcher::this_machine(environment).num_gpus();
  launcher::write_config(launcher::to_json(launcher::basic_config(options.mixed_precision, num_gpus).values), path);
  return path;
}

}  // namespace hasten
