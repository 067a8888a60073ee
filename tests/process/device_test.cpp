#include "hasten/process/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::process {
namespace {

RankInfo local(int rank, int num_ranks) {
  return {.rank = rank, .local_rank = rank, .world_size = num_ranks, .local_world_size = num_ranks};
}

TEST(ChooseDevice, TakesTheCudaDeviceOfTheLocalRank) {
  EXPECT_EQ(choose_device(local(0, 1), 4, false), c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(choose_device(local(3, 4), 4, false), c10::Device(c10::kCUDA, 3));
}

TEST(ChooseDevice, IsTheCpuWithoutCudaAndOnRequest) {
  EXPECT_TRUE(choose_device(local(3, 4), 0, false).is_cpu());
  EXPECT_TRUE(choose_device(local(3, 4), 2, true).is_cpu());
}

// As under srun --gpus-per-task=1.
TEST(ChooseDevice, TakesTheOnlyDeviceIfEachRankOfTheHostSeesAnother) {
  const std::vector<std::string> apart = {"0000:01:00.0", "0000:02:00.0"};
  EXPECT_EQ(choose_device(local(1, 2), 1, false, apart), c10::Device(c10::kCUDA, 0));
  EXPECT_TRUE(choose_device(local(1, 2), 1, true, apart).is_cpu());
  EXPECT_THROW(choose_device(local(1, 2), 1, false, {"0000:01:00.0", "0000:01:00.0"}), UsageError);
  EXPECT_THROW(choose_device(local(1, 2), 1, false, {"", "0000:02:00.0"}), UsageError);
  EXPECT_THROW(choose_device(local(2, 3), 1, false, apart), UsageError);
}

TEST(ChooseDevice, ALocalRankWithoutADeviceIsRefusedWithTheCounts) {
  try {
    choose_device(local(2, 4), 2, false);
    FAIL() << "no UsageError";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("[state] rank 2/4: local rank 2 has no device: 4 processes on this "
                                                    "machine, 2 CUDA device(s) visible"));
  }
}

}  // namespace
}  // namespace hasten::process
