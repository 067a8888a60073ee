// See version.h; HASTEN_VERSION is set for this file by CMake.
#include "hasten/core/version.h"

namespace hasten {

const char* version() noexcept {
  return HASTEN_VERSION;
}

}  // namespace hasten
