#include "launch/output/output_writer.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

namespace hasten::launcher {
namespace {

constexpr unsigned kNobody = 65534;

// In a process of its own: no thread may be started by it from here on.
void forbid_threads() {
  const rlimit none = {0, 0};
  if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(2);
  if (getuid() == 0 && setuid(kNobody) != 0) _exit(2);  // root has no limit
}

TEST(OutputWriter, WritesByItselfWhereNoThreadMayBeStarted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto push = [&] {
    forbid_threads();
    OutputWriter writer({.destination = ends[1], .progress = eventfd(0, EFD_NONBLOCK)});
    const std::string words = "some words\nwithout an end";
    const bool whole = writer.push(words) == words.size() && writer.idle();
    _exit(whole ? 0 : 1);
  };

  EXPECT_EXIT(push(), ::testing::ExitedWithCode(0), "");

  char buffer[64];
  const ssize_t size = ::read(ends[0], buffer, sizeof buffer);
  EXPECT_EQ(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0))), "some words\nwithout an end");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace hasten::launcher
