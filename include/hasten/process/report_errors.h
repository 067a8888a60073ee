// report_errors: uncaught exceptions end the process with their message.
#pragma once

#include <memory>

#include "hasten/core/env.h"

namespace hasten::process {

/// While the result lives, an uncaught std::exception ends the process with one line on standard error. Its exit code
/// is 1, or 2 for a UsageError. TORCHELASTIC_ERROR_FILE gets the message in torchrun's format. A Process and an
/// Accelerator do the same from their start on. Call it first in main() where errors may come before one is made. It
/// sets the process's std::terminate handler, so it is not for libraries.
std::shared_ptr<const void> report_errors(const Environment& environment);

/// The same where nothing else does so, for what may be used beside an Accelerator, as a Learner without one. Returns
/// null while a Process, an Accelerator or a result of these functions reports the errors.
std::shared_ptr<const void> report_errors_alone(const Environment& environment);

}  // namespace hasten::process
