// A hang over Gloo in the usual run; run_watch_slow_test.cpp has the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <csignal>

#include "hasten/core/text.h"
#include "hasten/process/process.h"
#include "support/processes.h"

namespace hasten::testing {
namespace {

using ::testing::HasSubstr;

HASTEN_PROCESS_CASE(stops_over_gloo) {
  const process::Process process({.backend = comm::BackendKind::kGloo});
  const at::Tensor sum = torch::ones({300'000});
  process.group().all_reduce_(sum);
  if (process.rank() == 2) raise(SIGSTOP);
  process.group().all_reduce_(sum);
  return 0;
}

TEST(RunWatch, ARankThatIsStoppedIsNamedOverGlooWithTheCallOfTheOthers) {
  Processes processes(3, "stops_over_gloo", {{"HASTEN_HANG_AFTER", "3600"}});

  EXPECT_TRUE(processes.wait_for_output(0, "╰")) << "nothing was said";
  const pid_t stopped = processes.pid(2);
  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGKILL);
  const std::string report = processes.wait()[0].output;

  EXPECT_THAT(report, HasSubstr("rank 2 of 3 is missing"));
  EXPECT_THAT(report, HasSubstr("all_reduce 2 of 'world': sum of float32 [300000] at run_watch_ranks_test.cpp:"));
  EXPECT_THAT(report, HasSubstr(text("rank 2 is stopped; kill -CONT ", stopped)));
}

}  // namespace
}  // namespace hasten::testing
