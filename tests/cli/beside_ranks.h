// Runs the command beside ranks that are children of the test itself.
#pragma once

#include <cstdio>
#include <string>

#include "hasten/core/text.h"

namespace hasten::test {

struct Told {
  int exit_code = -1;
  std::string out;  ///< standard output and error
};

/// Not by Command, which waits for all children of the test, the ranks included.
inline Told run_beside_ranks(const std::string& words) {
  Told told;
  FILE* const pipe = popen((text(HASTEN_COMMAND, " ", words, " 2>&1")).c_str(), "r");
  char part[4096];
  for (size_t count = 0; (count = fread(part, 1, sizeof part, pipe)) > 0;) told.out.append(part, count);
  told.exit_code = WEXITSTATUS(pclose(pipe));
  return told;
}

}  // namespace hasten::test
