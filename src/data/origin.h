// Where the data room's messages come from, outside a loader with a rank.
#pragma once

#include "hasten/core/error.h"

namespace hasten::data {

inline constexpr Origin kOrigin{"data"};

}  // namespace hasten::data
