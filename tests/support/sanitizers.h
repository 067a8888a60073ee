// What tests do otherwise under a sanitizer.
#pragma once

#include <sys/wait.h>

namespace hasten::testing {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HASTEN_TEST_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HASTEN_TEST_SANITIZED
#endif

/// Sanitizers take memory, address space and time of their own.
#ifdef HASTEN_TEST_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Returns a predicate for EXPECT_EXIT: the process was killed by `signal`. A sanitizer reports the signal and exits
/// with a code that is not 0, which counts as well.
inline auto ended_by(int signal) {
  return [signal](int status) { return WIFSIGNALED(status) ? WTERMSIG(status) == signal : WEXITSTATUS(status) != 0; };
}

}  // namespace hasten::testing
