#include "hasten/launch/base/standard_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hasten::launcher {
namespace {

bool is_null_device(int descriptor) {
  struct stat here = {}, null = {};
  return fstat(descriptor, &here) == 0 && stat("/dev/null", &null) == 0 && S_ISCHR(here.st_mode) &&
         here.st_rdev == null.st_rdev;
}

TEST(StandardDescriptors, ThoseThatAreClosedBecomeTheNullDevice) {
  const auto open_those_missing = [] {
    struct stat before = {}, now = {};
    fstat(STDOUT_FILENO, &before);
    close(STDIN_FILENO), close(STDERR_FILENO);
    open_standard_descriptors();
    const bool same = fstat(STDOUT_FILENO, &now) == 0 && now.st_ino == before.st_ino;
    _exit(same && is_null_device(STDIN_FILENO) && is_null_device(STDERR_FILENO) ? 0 : 1);
  };

  EXPECT_EXIT(open_those_missing(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace hasten::launcher
