// See device_writes.h.
#include "hasten/offload/units/device_writes.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/interception/interceptor.h"
#include "offload/units/pinned_ring.h"

namespace hasten::offload {
namespace {

// Fewer bytes are on the device before a thread has begun.
constexpr int64_t kSmallWrite = int64_t{256} << 10;
constexpr int64_t kMostUnderWay = int64_t{512} << 20;

}  // namespace

struct DeviceWrites::Impl {
  struct Writing {
    PinnedRing::Sent sent;
    int64_t bytes = 0;
  };
  struct OfDevice {
    explicit OfDevice(c10::Device device) : ring(device) {}
    std::deque<Writing> under_way;
    int64_t bytes = 0;
    PinnedRing ring;  // last: its threads end first
  };
  std::mutex mutex;
  std::unordered_map<c10::Device, std::unique_ptr<OfDevice>> devices;
};

DeviceWrites::DeviceWrites() : impl_(std::make_unique<Impl>()) {}

DeviceWrites::~DeviceWrites() = default;

bool DeviceWrites::put(const at::Tensor& target, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const interception::PassScope pass;
  const auto bytes = static_cast<int64_t>(values.nbytes());
  const bool is_plain = values.is_cpu() && values.is_contiguous() && target.is_contiguous() && bytes >= kSmallWrite &&
                        target.scalar_type() == values.scalar_type() && target.sizes() == values.sizes();
  if (!is_plain || !at::accelerator::isAcceleratorExcluded(target.device().type(), at::kMPS)) return false;
  // Its memory may be away, or others may watch it.
  if (!interception::interceptors_of(target, interception::Level::kEveryOperator).empty()) return false;
  const std::lock_guard lock(impl_->mutex);
  auto& of_device = impl_->devices[target.device()];
  if (!of_device) of_device = std::make_unique<Impl::OfDevice>(target.device());
  // What was computed on the target before comes first.
  std::vector<c10::Event> after;
  after.emplace_back(target.device().type())
      .record(c10::impl::VirtualGuardImpl(target.device().type()).getStream(target.device()));
  std::vector<PinnedRing::Part> parts;
  parts.push_back({fill_from(values), target.detach().view({-1}).view(at::kByte)});
  of_device->under_way.push_back({of_device->ring.send(std::move(parts), std::move(after)), bytes});
  of_device->bytes += bytes;
  while (of_device->bytes > kMostUnderWay && of_device->under_way.size() > 1) {
    of_device->under_way.front().sent.wait();
    of_device->bytes -= of_device->under_way.front().bytes;
    of_device->under_way.pop_front();
  }
  return true;
}

void DeviceWrites::finish() {
  const std::lock_guard lock(impl_->mutex);
  for (auto& [device, of_device] : impl_->devices) {
    const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    for (auto& writing : of_device->under_way) writing.sent.wait();
    of_device->under_way.clear();
    c10::Event written(device.type());
    written.record(of_device->ring.stream());
    written.block(stream);
    of_device->bytes = 0;
  }
}

}  // namespace hasten::offload
