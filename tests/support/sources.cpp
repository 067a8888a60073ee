// The folder of the tests' sources, as CMake knows it.
#include "support/sources.h"

namespace hasten::testing {

std::filesystem::path tests_folder() {
  return HASTEN_SOURCE_DIR "/tests";
}

}  // namespace hasten::testing
