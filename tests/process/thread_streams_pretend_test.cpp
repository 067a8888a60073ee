#include "hasten/process/thread_streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <thread>

namespace hasten::process {
namespace {

TEST(ThreadStreams, AThreadGetsTheDeviceAndTheStreamsOfItsMaker) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const c10::Device first(c10::kCUDA, 1), second(c10::kCUDA, 2);
  const auto of_first = cuda.getStreamFromGlobalPool(first), of_second = cuda.getStreamFromGlobalPool(second);
  const c10::MultiStreamGuard in_streams(std::vector<c10::Stream>{of_first, of_second});
  const c10::DeviceGuard on_device(second);
  c10::Device device = first;
  auto there = cuda.getDefaultStream(first), here = cuda.getDefaultStream(second);

  std::thread([&, set_streams = streams_for_threads()] {
    set_streams();
    device = cuda.getDevice();
    there = cuda.getStream(first);
    here = cuda.getStream(second);
  }).join();

  EXPECT_EQ(device, second);
  EXPECT_EQ(there, of_first);
  EXPECT_EQ(here, of_second);
}

}  // namespace
}  // namespace hasten::process
