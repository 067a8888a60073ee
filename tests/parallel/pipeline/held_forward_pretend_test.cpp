// A forward that is held has the device of the thread that began it.
#include "parallel/pipeline/held_forward.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

namespace hasten::parallel::pipeline {
namespace {

TEST(HeldForwardOnDevices, RunsOnTheDeviceOfItsMaker) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, 2));
  c10::DeviceIndex found = -1;
  HeldForward held([&] { found = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index(); });

  held.run();

  EXPECT_EQ(found, 2);
}

}  // namespace
}  // namespace hasten::parallel::pipeline
