// The one write of a line; see print.h.
#include "hasten/state/print.h"

#include <iostream>

namespace hasten::state::detail {

void print_line(const std::string& line) {
  std::cout << line + '\n' << std::flush;
}

}  // namespace hasten::state::detail
