// hasten::launch from inside a program that is linked to libtorch: the front door in the children it starts.
#include "hasten/launch/run/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <thread>

#include "hasten/accelerator.h"
#include "support/processes.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_processes;

HASTEN_PROCESS_CASE(launches_three_ranks) {
  return launch(3, [] {
    const Accelerator accelerator;
    const at::Tensor sum = accelerator.reduce(torch::full({1}, accelerator.rank() + 1.0));
    if (accelerator.is_main_process()) std::printf("sum %g\n", sum.item<double>());
  });
}

TEST(LaunchRanks, RanksStartedFromInsideAProgramCommunicate) {
  const auto result = run_processes(1, "launches_three_ranks").front();

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("sum 6"));
}

HASTEN_PROCESS_CASE(launches_ranks_with_a_backend) {
  return launch(2, [] {
    const Accelerator accelerator({.backend = comm::BackendKind::kGloo});
    if (accelerator.is_main_process()) {
      std::printf("over %s\n", accelerator.group().backend_name().c_str());
    }
  });
}

TEST(LaunchRanks, TheBackendIsTheOneThatTheOptionsName) {
  const auto result = run_processes(1, "launches_ranks_with_a_backend").front();

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("over gloo\n"));
}

HASTEN_PROCESS_CASE(launches_after_threads) {
  at::set_num_threads(2);
  at::parallel_for(0, 1 << 20, 1, [](int64_t, int64_t) {});
  std::thread other([] { pause(); });
  other.detach();
  launch(2, [] {});
  return 0;
}

TEST(LaunchRanks, AProcessWithSeveralThreadsIsNotForked) {
  const auto result = run_processes(1, "launches_after_threads").front();

  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("threads"));
}

}  // namespace
}  // namespace hasten
