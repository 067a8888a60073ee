// A forward that is held has the device and the streams of the thread that began it.
#include "parallel/pipeline/held_forward.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
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

TEST(HeldForwardOnDevices, RunsInTheStreamOfItsMaker) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const c10::Device device(c10::kCUDA, 1);
  const c10::Stream own = cuda.getStreamFromGlobalPool(device);
  const c10::StreamGuard guard(own);
  c10::Stream found = cuda.getDefaultStream(device);
  HeldForward held([&] { found = cuda.getStream(device); });

  held.run();

  EXPECT_EQ(found, own);
}

}  // namespace
}  // namespace hasten::parallel::pipeline
