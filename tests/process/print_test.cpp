#include "hasten/process/print.h"

#include <gtest/gtest.h>

namespace hasten::process {
namespace {

/// What two machines of two processes print.
std::string printed(const std::function<void(const Process&)>& print) {
  ::testing::internal::CaptureStdout();
  for (int rank = 0; rank < 4; ++rank) {
    print(Process({.rank = rank, .local_rank = rank % 2, .node_rank = rank / 2, .world_size = 4, .local_world_size = 2},
                  comm::Group()));
  }
  return ::testing::internal::GetCapturedStdout();
}

TEST(Print, WritesOncePerMachine) {
  EXPECT_EQ(printed([](const Process& process) { print(process, "rank ", process.rank(), " of ", 4); }),
            "rank 0 of 4\nrank 2 of 4\n");
}

TEST(PrintOnce, WritesOnceInTheWholeRun) {
  EXPECT_EQ(printed([](const Process& process) { print_once(process, "rank ", process.rank()); }), "rank 0\n");
}

}  // namespace
}  // namespace hasten::process
