// Names that the units of the room share: where their errors come from, and the section of ZeRO.
#pragma once

#include <string>

#include "hasten/core/error.h"

namespace hasten::plan {

inline const Origin kDeepSpeed{"deepspeed"};
inline const Origin kFsdp{"fsdp"};
inline const std::string kZero = "zero_optimization.";

}  // namespace hasten::plan
