// The Accelerator's part of a run whose dead ranks are replaced (parallel/survive/survive.h). It has the settings that
// such a run cannot go with.
#pragma once

#include "hasten/accelerator/options.h"
#include "hasten/core/env.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/plugins/plugins.h"
#include "hasten/process/process.h"

namespace hasten {

/// Throws: UsageError that lists the settings under which a dead rank's state is lost with it.
void require_survivable(const AcceleratorOptions& options, const parallel::Layout& layout, const Plugins& plugins,
                        const Environment& environment, const process::Process& process);

/// Throws: UsageError naming `call`, if dead ranks are replaced.
void refuse_where_replaced(const char* call, const process::Process& process);

}  // namespace hasten
