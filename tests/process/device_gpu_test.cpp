// The device of a process, and its random numbers, on a GPU.
#include "hasten/process/device.h"

#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/process/random.h"
#include "support/device.h"

namespace hasten::process {
namespace {

using testing::kGpu;

class DeviceGpu : public testing::OnGpu {};

TEST_F(DeviceGpu, AWorldOfOneGetsTheFirstGpu) {
  const Process process({.change_process = false}, Environment({}));
  EXPECT_EQ(process.device(), kGpu);
}

TEST_F(DeviceGpu, ALocalRankBeyondTheGpusIsRefused) {
  RankInfo far;
  far.local_rank = 64;
  EXPECT_THROW(choose_device(far, static_cast<int>(torch::cuda::device_count()), false), UsageError);
}

TEST_F(DeviceGpu, TheSameSeedGivesTheSameNumbers) {
  set_seed(testing::alone_on(kGpu), 5);
  const auto first = torch::randn({4}, kGpu).cpu();
  set_seed(testing::alone_on(kGpu), 5);
  EXPECT_TRUE(torch::randn({4}, kGpu).cpu().equal(first));
}

TEST_F(DeviceGpu, PackedRandomStateComesBack) {
  const auto before = capture_random_state();
  const auto first = torch::randn({4}, kGpu).cpu();
  restore_random_state(unpack_random_state(pack(before)));

  EXPECT_FALSE(before.cuda.empty());
  EXPECT_TRUE(torch::randn({4}, kGpu).cpu().equal(first));
}

}  // namespace
}  // namespace hasten::process
