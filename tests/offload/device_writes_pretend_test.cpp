// Values written into tensors of a device through the ring: they arrive in order with what the device does.
#include "hasten/offload/units/device_writes.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/device.h"

namespace hasten::offload {
namespace {

using testing::kGpu;
using testing::pretend::counts;

TEST(DeviceWrites, LargeValuesGoThroughTheRingAndAreThereAfterFinish) {
  const auto values = torch::randn({512, 300});
  auto target = torch::zeros({512, 300}, kGpu);
  const auto late = counts()->late_copies;
  counts()->slow_ms = 0;

  DeviceWrites writes;
  ASSERT_TRUE(writes.put(target, values));
  ASSERT_TRUE(writes.put(target, values * 2));
  writes.finish();
  const auto sum = target + 1;

  EXPECT_GE(counts()->late_copies - late, 2);
  EXPECT_EQ(sum.sizes(), values.sizes());
  EXPECT_FALSE(target.cpu().isnan().any().item<bool>());
  counts()->slow_ms = 20;
}

TEST(DeviceWrites, AWriteComesAfterWhatTheDeviceWasToDoBefore) {
  const auto values = torch::randn({1 << 17});
  auto target = torch::zeros({1 << 17}, kGpu);
  auto late = torch::full({1 << 17}, 7.0).pin_memory();
  counts()->slow_ms = 0;

  target.copy_(late, /*non_blocking=*/true);
  DeviceWrites writes;
  ASSERT_TRUE(writes.put(target, values));
  writes.finish();

  EXPECT_TRUE(target.cpu().equal(values));
  counts()->slow_ms = 20;
}

TEST(DeviceWrites, WhatAPlainCopyServesIsLeftToIt) {
  DeviceWrites writes;
  auto large = torch::zeros({600, 600}, kGpu);

  EXPECT_FALSE(writes.put(torch::zeros({4}, kGpu), torch::ones({4})));
  EXPECT_FALSE(writes.put(torch::zeros({600, 600}), torch::ones({600, 600})));
  EXPECT_FALSE(writes.put(large, torch::ones({600, 600}, at::kBFloat16)));
  EXPECT_FALSE(writes.put(large.t(), torch::rand({600, 600})));
  EXPECT_TRUE(large.cpu().eq(0).all().item<bool>());
}

}  // namespace
}  // namespace hasten::offload
