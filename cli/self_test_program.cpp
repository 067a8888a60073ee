// See self_test_program.h.
#include "self_test_program.h"

#include <filesystem>

#include "hasten/core/error.h"

namespace hasten::cli {

std::string self_test_program(const std::string& command) {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").replace_filename("hasten-self-test");
  if (std::filesystem::exists(path)) return path;
  throw UsageError({command}, "'", path.string(), "' does not exist. Install it, or build it: target ",
                   "hasten_self_test.");
}

}  // namespace hasten::cli
