// What `hasten launch` understands but cannot do, or not yet: it refuses by name instead of doing something
// else.
#pragma once

#include "hasten/launch/settings.h"

namespace hasten::cli {

/// Throws: UsageError that names every option that cannot be followed.
void refuse_what_cannot_be_done(const launcher::LaunchSettings& settings);

}  // namespace hasten::cli
