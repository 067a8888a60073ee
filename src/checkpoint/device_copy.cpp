// Streams and events of whatever accelerator it is; see device_copy.h.
#include "checkpoint/device_copy.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace hasten::checkpoint {

bool DeviceCopy::serves(c10::Device device) {
  // MPS shares its memory with the host and has one stream.
  return !device.is_cpu() && at::accelerator::isAcceleratorExcluded(device.type(), at::kMPS);
}

DeviceCopy::DeviceCopy(c10::Device device)
    : device_(device),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      ready_(device.type()),
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

void DeviceCopy::hold() {
  const std::lock_guard lock(mutex_);
  if (is_held_) return;
  is_held_ = true;
  copied_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void DeviceCopy::finish() {
  copied_.synchronize();
}

}  // namespace hasten::checkpoint
