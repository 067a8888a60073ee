// watch_rank: the watch over a rank whose program makes its groups without a Process (the Python module).
//
// A Process starts the same watch by itself (docs/watch.md).
#pragma once

#include <memory>

#include "hasten/core/env.h"

namespace hasten::process {

/// Starts the watch thread of this rank on the page that `hasten launch` has made for it (HASTEN_FLIGHT_FD). The rank
/// has left the run when the result is gone. Null without that page, with HASTEN_WATCH=0, or if the system has no memory
/// for it. To be called before ranks meet, once.
/// Throws: UsageError for a variable that cannot be understood.
std::shared_ptr<const void> watch_rank(const Environment& environment);

}  // namespace hasten::process
