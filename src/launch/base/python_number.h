// A floating-point number as Python's repr writes it.
#pragma once

#include <string>

namespace hasten::launcher {

/// "1000.0", "1e-05", "1e+16", "inf".
std::string python_repr(double number);

}  // namespace hasten::launcher
