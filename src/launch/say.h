// A line for the user of the command, on standard error.
#pragma once

#include <iostream>
#include <string>

namespace hasten::launcher {

inline void say(const std::string& line) {
  std::cerr << "hasten: " << line << std::endl;
}

}  // namespace hasten::launcher
