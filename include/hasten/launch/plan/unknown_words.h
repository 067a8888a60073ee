// Settings that mean nothing: words that do not exist, of settings that only the program reads, and options whose
// switch is off.
//
// Only a start asks. A plan (--explain) shows the variables that Accelerate's launcher would hand on.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/plan/settings.h"

namespace hasten::launcher {

/// Returns a sentence without its full stop for each word that is given and stands for nothing. It has the setting, its
/// origin, the words that there are, and the nearest.
std::vector<std::string> unknown_words(const LaunchSettings& settings);

/// Returns a sentence for each group of options of the command line whose switch is off, so that they do nothing. The
/// sentence names them and the switch.
std::vector<std::string> options_without_effect(const LaunchSettings& settings);

}  // namespace hasten::launcher
