// Writes a line for the user of the command to standard error. It is written at once, so that no worker's line comes in
// between.
#pragma once

#include <iostream>
#include <string>

namespace hasten::launcher {

inline void print_notice(const std::string& line) {
  std::cerr << "hasten: " + line + "\n" << std::flush;
}

}  // namespace hasten::launcher
