// See away.h.
#include "parallel/recompute/away.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <utility>

#include "hasten/offload/units/device_buffer.h"

namespace hasten::parallel {
namespace {

// Smaller tensors cost more to copy than they take.
constexpr size_t kSmallBytes = 4096;

std::atomic<int64_t> num_bytes_sent = 0;

using offload::PlainMode;

const c10::StorageImpl* own_storage(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// Weights, views of weights, and what no gradient leads through, belong to the program.
bool may_go(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_inference() || (tensor.is_view() && tensor._base().is_leaf())) return false;
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_inference() &&
         tensor.requires_grad() && !tensor.is_leaf() && !tensor.is_meta() && tensor.storage().nbytes() >= kSmallBytes &&
         at::accelerator::isAcceleratorExcluded(tensor.device().type(), at::kMPS);
}

}  // namespace

AwayTensor::~AwayTensor() {
  owner_->forget(place_);
}

at::Tensor AwayTensor::flat(at::ScalarType dtype) {
  return owner_->take(place_).view(dtype);
}

c10::Stream AwayTensors::stream_of(c10::Device device) {
  const auto found = streams_.find(device);
  if (found != streams_.end()) return found->second;
  return streams_.emplace(device, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device))
      .first->second;
}

std::shared_ptr<AwayTensor> AwayTensors::find(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(own_storage(tensor));
  if (found == known_.end() || found->second.storage.expired()) return nullptr;
  return found->second.away.lock();
}

std::shared_ptr<AwayTensor> AwayTensors::send(const at::Tensor& tensor) {
  if (auto away = find(tensor)) return away;
  if (!may_go(tensor)) return nullptr;
  const PlainMode plain;
  const c10::Device device = tensor.device();
  const c10::impl::VirtualGuardImpl of_device(device.type());
  const auto num_bytes = static_cast<int64_t>(tensor.storage().nbytes());
  const auto options = at::TensorOptions().dtype(at::kByte);
  const at::Tensor bytes = at::empty({0}, options.device(device)).set_(tensor.storage(), 0, {num_bytes}, {1});
  const std::lock_guard lock(mutex_);
  const c10::Stream stream = stream_of(device);
  c10::Event ready(device.type());
  ready.record(of_device.getStream(device));
  ready.block(stream);
  Place place{.host = at::empty({num_bytes}, options.pinned_memory(true)), .where = device};
  {
    const c10::StreamGuard guard(stream);
    place.host.copy_(bytes, /*non_blocking=*/true);
  }
  // The program gives it up before the copy is done.
  of_device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  places_.push_back(std::move(place));
  auto away = std::make_shared<AwayTensor>(shared_from_this(), places_.size() - 1);
  known_.insert_or_assign(own_storage(tensor), Known{tensor.storage().getWeakStorageImpl(), away});
  num_bytes_sent += num_bytes;
  return away;
}

void AwayTensors::bring(Place& place) {
  if (place.device.defined() || place.is_over) return;
  const c10::impl::VirtualGuardImpl of_device(place.where.type());
  place.device = at::empty(place.host.sizes(), place.host.options().device(place.where).pinned_memory(false));
  const c10::Stream stream = stream_of(place.where);
  // Work of before may still use the memory.
  c10::Event ready(place.where.type());
  ready.record(of_device.getStream(place.where));
  ready.block(stream);
  {
    const c10::StreamGuard guard(stream);
    place.device.copy_(place.host, /*non_blocking=*/true);
  }
  of_device.recordDataPtrOnStream(place.device.storage().data_ptr(), stream);
  place.came.emplace(place.where.type());
  place.came->record(stream);
}

at::Tensor AwayTensors::take(size_t index) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  Place& place = places_[index];
  bring(place);
  place.came->block(c10::impl::VirtualGuardImpl(place.where.type()).getStream(place.where));
  // The one before comes next in backward.
  for (size_t before = index; before-- > 0;) {
    if (places_[before].is_over) continue;
    bring(places_[before]);
    break;
  }
  return place.device;
}

void AwayTensors::forget(size_t index) {
  const std::lock_guard lock(mutex_);
  Place& place = places_[index];
  place.is_over = true;
  place.host = place.device = at::Tensor();
}

int64_t bytes_sent_away() noexcept {
  return num_bytes_sent;
}

}  // namespace hasten::parallel
