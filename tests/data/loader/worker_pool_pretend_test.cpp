// Workers have the device of the thread that made them. With device 0 each rank's workers would wake the first GPU.
#include "data/loader/detail/worker_pool.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <atomic>

namespace hasten::data {
namespace {

TEST(WorkerPoolOnDevices, WorkersHaveTheDeviceOfTheirMaker) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, 2));
  WorkerPool pool(3);
  std::atomic<int> count = 0, there = 0;
  for (int i = 0; i < 6; ++i) {
    pool.submit(nullptr, [&](size_t) {
      const auto device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
      pool.finish([&] {
        ++count;
        there += device.index() == 2 ? 1 : 0;
      });
    });
  }
  pool.wait([&] { return count == 6; }, {});

  EXPECT_EQ(there, 6);
}

}  // namespace
}  // namespace hasten::data
