// Pinned memory, a stream and an event of whatever accelerator it is; see staging.h.
#include "data/loader/detail/staging.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <string>

namespace hasten::data::detail {
namespace {

// One stream a device for all loaders. The allocator keeps freed memory for the stream that it was made on, so each
// further stream would hold batches of its own.
c10::Stream stream_of(c10::Device device) {
  static std::mutex mutex;
  static auto* const streams = new std::map<std::string, c10::Stream>;  // never destroyed
  const std::lock_guard lock(mutex);
  const auto found = streams->find(device.str());
  if (found != streams->end()) return found->second;
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return streams->emplace(device.str(), stream).first->second;
}

}  // namespace

bool Staging::serves(c10::Device device) {
  // MPS shares its memory with the host and has one stream.
  return at::accelerator::isAcceleratorExcluded(device.type(), at::kMPS);
}

Staging::Staging(c10::Device device) : device_(device), stream_(stream_of(device)), sent_(device.type()) {}

at::Tensor Staging::pin(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || tensor.is_quantized()) return tensor;
  // On a worker thread: without it the first pinning would wake device 0 on every rank.
  const c10::DeviceGuard guard(device_);
  return tensor.pin_memory();
}

at::Tensor Staging::send(const at::Tensor& tensor) {
  if (tensor.device() == device_) return tensor;
  const at::Tensor pinned = pin(tensor);
  const c10::StreamGuard guard(stream_);
  const at::Tensor there = pinned.to(device_, pinned.scalar_type(), /*non_blocking=*/true);
  // The allocator of pinned memory keeps `pinned` until the copy has ended.
  sent_.record(stream_);
  return there;
}

void Staging::receive(const at::Tensor& tensor) {
  if (tensor.device() != device_) return;
  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream loop = device.getStream(device_);
  if (sent_.was_marked_for_recording()) sent_.block(loop);
  // Its memory belongs to the copying stream, which must not take it back before the loop's stream is done.
  if (tensor.has_storage()) device.recordDataPtrOnStream(tensor.storage().data_ptr(), loop);
}

TransferStage staged(std::shared_ptr<Staging> staging, const BatchOperations& operations) {
  return {.pin =
              [staging, of = operations](const AnyBatch& batch) {
                return of.map_tensors(batch, [&](const at::Tensor& tensor) { return staging->pin(tensor); });
              },
          .send =
              [staging, of = operations](const AnyBatch& batch) {
                return of.map_tensors(batch, [&](const at::Tensor& tensor) { return staging->send(tensor); });
              },
          .receive =
              [staging, of = operations](const AnyBatch& batch) {
                for (const at::Tensor& tensor : of.tensors_of(batch)) staging->receive(tensor);
              }};
}

}  // namespace hasten::data::detail
