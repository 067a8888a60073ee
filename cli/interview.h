// The questions of `hasten config`, whose answers are a configuration file of Accelerate's.
#pragma once

#include "asker.h"
#include "hasten/launch/config/config_file.h"

namespace hasten::cli {

/// Asks what such a file can say, each question only where an answer before it makes it one.
launcher::ConfigMap interview(Asker& asker);

}  // namespace hasten::cli
