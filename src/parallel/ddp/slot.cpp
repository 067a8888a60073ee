// See slot.h.
#include "parallel/ddp/slot.h"

#include <torch/types.h>

#include <algorithm>

namespace hasten::parallel {
namespace {

// Below this many elements an operator of libtorch's spends more time on getting ready than on the data.
constexpr int64_t kFew = 4096;
constexpr int64_t kDeviceAlign = 16;

template <class T>
void scale_into(const at::Tensor& to, const at::Tensor& from, double scale) {
  const T* in = from.const_data_ptr<T>();
  T* out = to.data_ptr<T>();
  const T factor = static_cast<T>(scale);
  for (int64_t i = 0; i < to.numel(); ++i) out[i] = in[i] * factor;
}

}  // namespace

int64_t place_slots(const std::vector<at::Tensor>& parameters, const GradientAllocator* gradient_allocator,
                    std::vector<int64_t>& offsets) {
  int64_t end = 0;
  for (const at::Tensor& parameter : parameters) {
    const bool can_write_in_place =
        gradient_allocator != nullptr && static_cast<int64_t>(parameter.nbytes()) >= gradient_allocator->least_bytes();
    // Kernels of a device read 16 bytes at once where they are aligned.
    const int64_t bytes = can_write_in_place ? GradientAllocator::kAlign : parameter.is_cpu() ? 1 : kDeviceAlign;
    const int64_t unit = std::max<int64_t>(bytes / parameter.element_size(), 1);
    offsets.push_back((end + unit - 1) / unit * unit);
    end = offsets.back() + parameter.numel();
  }
  return end;
}

void set_slot(const at::Tensor& slot, const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  const at::Tensor like = parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous();
  slot.set_(flat.storage(), offset, like.sizes(), like.strides());
}

at::Tensor leave_slot(const at::Tensor& slot, const at::Tensor& flat, const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor next = torch::empty({0}, parameter.options().requires_grad(false));
  set_slot(next, flat, slot.storage_offset(), parameter);
  slot.set_(slot.clone());
  return next;
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || !a.has_storage() || !b.has_storage()) return false;
  return a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

bool is_autograds_alone(const at::Tensor& gradient, const at::Tensor& arrived) {
  // .grad() is another tensor over the storage of what arrived, which may be a view of a third.
  return arrived.defined() && gradient.storage().use_count() <= (arrived.is_view() ? 3U : 2U);
}

void fill_slots(const std::vector<at::Tensor>& slots, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined() || gradient.is_alias_of(slots[i])) continue;
    to.push_back(slots[i]);
    from.push_back(gradient.detach());
  }
  if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
}

void put_scaled(at::Tensor& to, const at::Tensor& from, double scale) {
  if (from.is_alias_of(to)) {
    if (scale != 1) from.mul_(scale);
    return;
  }
  const bool alike = to.is_cpu() && from.is_cpu() && from.scalar_type() == to.scalar_type() &&
                     from.layout() == at::kStrided && to.numel() <= kFew && from.sizes() == to.sizes() &&
                     from.strides() == to.strides() && !from.is_neg();
  if (alike && to.scalar_type() == at::kFloat) return scale_into<float>(to, from, scale);
  if (alike && to.scalar_type() == at::kDouble) return scale_into<double>(to, from, scale);
  if (scale == 1 && !from.is_sparse()) {
    to.copy_(from.detach(), /*non_blocking=*/true);
    return;
  }
  // The factor stays on the CPU: on a device it would be a kernel of its own.
  at::mul_out(to, from.detach(), at::scalar_tensor(scale, to.options().device(at::kCPU)));
}

}  // namespace hasten::parallel
