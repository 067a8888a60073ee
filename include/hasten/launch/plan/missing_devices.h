// Devices that a run asks for and its machine lacks: the run would train on the CPU without a word.
//
// Only a start asks. A plan (--explain) may be of another machine.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/base/machine.h"
#include "hasten/launch/plan/settings.h"

namespace hasten::launcher {

/// Returns a sentence for each kind of device that the settings ask for and this machine lacks. It has the setting, its
/// origin, and what there is. Empty if there is all, or the run stays on the CPU.
std::vector<std::string> missing_devices(const LaunchSettings& settings, const Machine& machine,
                                         const Environment& environment);

}  // namespace hasten::launcher
