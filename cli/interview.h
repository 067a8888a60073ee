// The questions of `hasten config`, whose answers are a configuration file of Accelerate's.
#pragma once

#include "asker.h"
#include "hasten/launch/config/config_file.h"

namespace hasten::cli {

/// Asks the questions of such a file. A question depends on the answers before it.
launcher::ConfigMap interview(Asker& asker);

}  // namespace hasten::cli
