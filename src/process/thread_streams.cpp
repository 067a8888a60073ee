// See hasten/process/thread_streams.h.
#include "hasten/process/thread_streams.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

#include "hasten/process/device.h"

namespace hasten::process {

std::function<void()> streams_for_threads() {
  if (num_cuda_devices() == 0) return [] {};
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  std::vector<c10::Stream> streams;
  for (c10::DeviceIndex index = 0; index < guard.deviceCount(); ++index)
    streams.push_back(guard.getStream(c10::Device(c10::kCUDA, index)));
  return [guard, streams, set_device = device_for_threads()] {
    for (const c10::Stream& stream : streams) guard.exchangeStream(stream);
    set_device();
  };
}

}  // namespace hasten::process
