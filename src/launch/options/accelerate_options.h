// Options that hasten checks and passes on in the variables that the peers use. Their meaning is the program's.
#pragma once

#include "hasten/launch/options/option_table.h"

namespace hasten::launcher {

/// Dynamo, DeepSpeed, FSDP, Megatron-LM, fp8, parallelism, TPU and SageMaker.
std::vector<OptionGroup> handed_on_options();

}  // namespace hasten::launcher
