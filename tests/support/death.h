// ended_by: the end of a death test by a signal, also where a sanitizer catches it first.
#pragma once

#include <sys/wait.h>

namespace hasten::testing {

/// Returns a predicate for EXPECT_EXIT: the process was killed by `signal`. A sanitizer reports the signal and exits
/// with a code that is not 0, which counts as well.
inline auto ended_by(int signal) {
  return [signal](int status) { return WIFSIGNALED(status) ? WTERMSIG(status) == signal : WEXITSTATUS(status) != 0; };
}

}  // namespace hasten::testing
