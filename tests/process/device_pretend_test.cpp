// Processes of one host that see one GPU each, as under srun --gpus-per-task=1, and such that share the one they see.
#include "hasten/process/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <iostream>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/process/process.h"
#include "support/processes.h"

namespace hasten::process {
namespace {

using ::testing::HasSubstr;

const std::map<std::string, std::string> kOneVisible = {{"HASTEN_PRETEND_DEVICES", "1"}, {"HASTEN_BACKEND", "gloo"}};

HASTEN_PROCESS_CASE(one_visible_gpu_each) {
  ::setenv("HASTEN_PRETEND_BUS_ID", text("0000:0", std::getenv("RANK"), ":00.0").c_str(), 1);
  const Process process;
  auto sum = torch::ones({2}, process.device());
  process.group().all_reduce_(sum);
  std::cout << "local rank " << process.local_rank() << " of " << process.local_world_size() << " on "
            << process.device() << ", sum " << sum.sum().item<float>() << std::endl;
  return 0;
}

TEST(OnlyDevice, EachProcessOfAHostThatSeesAnotherGpuTakesIt) {
  const auto results = testing::run_processes(2, "one_visible_gpu_each", kOneVisible);

  for (int rank = 0; rank < 2; ++rank) {
    const auto& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr(text("local rank ", rank, " of 2 on cuda:0, sum 4")));
  }
}

HASTEN_PROCESS_CASE(one_visible_gpu_for_all) {
  ::setenv("HASTEN_PRETEND_BUS_ID", "0000:01:00.0", 1);
  try {
    const Process process;
  } catch (const UsageError& error) {
    std::cout << error.what() << std::endl;
  }
  return 0;
}

TEST(OnlyDevice, ASecondProcessOnTheOneGpuThatAllSeeIsRefused) {
  testing::Processes processes(2, "one_visible_gpu_for_all", kOneVisible);

  EXPECT_TRUE(
      processes.wait_for_output(1, "local rank 1 has no device: 2 processes on this machine, 1 CUDA device(s)"));
}

}  // namespace
}  // namespace hasten::process
