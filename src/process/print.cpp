// The one write of a line; see print.h.
#include "hasten/process/print.h"

#include <iostream>

namespace hasten::process::detail {

void print_line(const std::string& line) {
  std::cout << line + '\n' << std::flush;
}

}  // namespace hasten::process::detail
