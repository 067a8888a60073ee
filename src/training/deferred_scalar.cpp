// See deferred_scalar.h.
#include "hasten/training/deferred_scalar.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <memory>

#include "hasten/core/text.h"

namespace hasten::tracking {
namespace {

// A scalar on its way from a device.
class DeferredScalar : public Pending {
 public:
  explicit DeferredScalar(const at::Tensor& tensor)
      : device_(tensor.device()),
        host_(at::empty({}, tensor.options().device(at::kCPU).pinned_memory(true))),
        event_(tensor.device().type()) {
    // The source's memory is freed in stream order, so the copy is safe once it is enqueued.
    host_.copy_(tensor.reshape({}), /*non_blocking=*/true);
    event_.record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  }
  bool ready() noexcept override {
    try {
      // A thread of the trackers asks: without it that would wake device 0 on every rank.
      const c10::DeviceGuard guard(device_);
      return event_.query();
    } catch (const std::exception&) {
      return true;  // value() then gives NaN
    }
  }
  double value() noexcept override {
    try {
      const c10::DeviceGuard guard(device_);
      event_.synchronize();
      return host_.item<double>();
    } catch (const std::exception&) {
      return std::nan("");
    }
  }

 private:
  c10::Device device_;
  at::Tensor host_;
  c10::Event event_;
};

}  // namespace

Value ValueOf<at::Tensor>::make(const at::Tensor& tensor) {
  if (!tensor.defined()) return Value::invalid("an undefined tensor");
  if (tensor.numel() != 1 || tensor.is_complex()) {
    return Value::invalid(text("a tensor of shape [", join(tensor.sizes()), "] and type ", tensor.scalar_type()));
  }
  const at::Tensor plain = tensor.detach();
  if (plain.is_cuda()) return Value(std::make_shared<DeferredScalar>(plain));
  if (at::isIntegralType(plain.scalar_type(), /*includeBool=*/false)) return Value(plain.item<int64_t>());
  if (plain.scalar_type() == at::kBool) return Value(plain.item<bool>());
  return Value(plain.item<double>());
}

}  // namespace hasten::tracking
