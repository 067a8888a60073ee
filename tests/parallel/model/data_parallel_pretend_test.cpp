// Threads of data_parallel on several GPUs: they have the device and the streams of the thread that starts them.
#include "hasten/parallel/model/data_parallel.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

namespace hasten::parallel {
namespace {

c10::Device gpu(int index) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

TEST(DataParallelOnDevices, ThreadsBeginWithTheDeviceAndStreamsOfTheOneThatStartsThem) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const c10::DeviceGuard on_device(gpu(2));
  const auto other = cuda.getStreamFromGlobalPool(gpu(1));
  const c10::StreamGuard on_stream(other);  // makes its device current
  cuda.setDevice(gpu(2));
  std::vector<c10::Device> devices(3, gpu(0));
  std::vector<c10::Stream> streams(3, cuda.getDefaultStream(gpu(1)));

  detail::run_in_threads(3, [&](size_t i) {
    devices[i] = cuda.getDevice();
    streams[i] = cuda.getStream(gpu(1));
  });

  EXPECT_EQ(devices, std::vector<c10::Device>(3, gpu(2)));
  EXPECT_EQ(streams, std::vector<c10::Stream>(3, other));
}

}  // namespace
}  // namespace hasten::parallel
