// Options of an Accelerator together with what the environment says about them.
#pragma once

#include "hasten/accelerator_options.h"
#include "hasten/core/env.h"
#include "hasten/state/accumulation.h"

namespace hasten {

/// Throws: UsageError for what this version cannot do, naming the option or the variable.
void refuse_what_is_missing(const AcceleratorOptions& options, const Environment& environment);

/// Throws: UsageError for a number of steps below 1.
state::Accumulation read_accumulation(const AcceleratorOptions& options, const Environment& environment);

}  // namespace hasten
