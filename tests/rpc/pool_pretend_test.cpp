// Threads of the agent have the device of the thread that made them.
#include "rpc/pool.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>

namespace hasten::rpc {
namespace {

TEST(PoolOnDevices, ThreadsHaveTheDeviceOfTheirMaker) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, 2));
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;
  Pool pool({.num_threads = 2,
             .serve =
                 [&] {
                   std::unique_lock lock(mutex);
                   changed.wait(lock, [&] { return std::exchange(woken, false); });
                 },
             .wake =
                 [&] {
                   const std::lock_guard lock(mutex);
                   woken = true;
                   changed.notify_all();
                 },
             .flush = [] {},
             .enter = [] {}});
  pool.start();
  std::promise<int> found;

  pool.submit({.run = [&] { found.set_value(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index()); }});

  EXPECT_EQ(found.get_future().get(), 2);
  pool.stop();
}

}  // namespace
}  // namespace hasten::rpc
