// Which keys Accelerate's configuration has, of which type, and their defaults.
#pragma once

#include <string>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::launcher {

enum class ConfigType { kText, kInteger, kFlag, kMap, kList };

struct ConfigKey {
  std::string name;
  ConfigType type;
  core::Value fallback;
  double least = 0;  ///< of an integer
};

/// Returns the keys of a run on machines of one's own, or of one on SageMaker.
const std::vector<ConfigKey>& config_keys(bool sagemaker);

/// Allowed values of distributed_type.
const std::vector<std::string>& distributed_types(bool sagemaker);

/// Returns the mistakes of the values, each a sentence without its full stop; unknown keys first.
std::vector<std::string> config_problems(const core::Value& values, bool sagemaker);

}  // namespace hasten::launcher
