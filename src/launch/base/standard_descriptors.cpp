// See standard_descriptors.h.
#include "hasten/launch/base/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace hasten::launcher {

void open_standard_descriptors() noexcept {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest that is free is taken.
    if (fcntl(descriptor, F_GETFD) < 0) (void)open("/dev/null", O_RDWR);
  }
}

}  // namespace hasten::launcher
