// Streams and events of whatever accelerator it is; see device_copy.h.
#include "checkpoint/save/device_copy.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace hasten::checkpoint {

bool DeviceCopy::serves(c10::Device device) {
  // MPS shares its memory with the host and has one stream.
  return !device.is_cpu() && at::accelerator::isAcceleratorExcluded(device.type(), at::kMPS);
}

DeviceCopy::DeviceCopy(c10::Device device)
    : device_(device),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      ready_(device.type()),
      first_(device.type()),
      copied_(device.type()) {
  ready_.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  ready_.block(stream_);
}

void DeviceCopy::add(char* to, const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  const c10::StreamGuard guard(stream_);
  at::from_blob(to, plain.sizes(), plain.options().device(at::kCPU).requires_grad(false))
      .copy_(plain, /*non_blocking=*/true);
  // A tensor made for this copy may be freed before the copy is done.
  if (plain.has_storage())
    c10::impl::VirtualGuardImpl(device_.type()).recordDataPtrOnStream(plain.storage().data_ptr(), stream_);
}

void DeviceCopy::close() {
  copied_.record(stream_);
}

void DeviceCopy::hold_first() {
  first_.record(stream_);
  first_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void DeviceCopy::hold() {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  const std::lock_guard lock(mutex_);
  if (std::find(held_.begin(), held_.end(), stream) != held_.end()) return;
  held_.push_back(stream);
  copied_.block(stream);
}

void DeviceCopy::finish() {
  // The writer's thread: without it the wait would wake device 0 on every rank.
  const c10::DeviceGuard guard(device_);
  copied_.synchronize();
}

}  // namespace hasten::checkpoint
