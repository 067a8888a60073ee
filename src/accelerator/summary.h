// The line about an Accelerator that people paste into bug reports.
#pragma once

#include <string>

#include "hasten/accelerator.h"

namespace hasten {

std::string summary_of(const Accelerator& accelerator);

}  // namespace hasten
