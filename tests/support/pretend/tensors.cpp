// Kernels that are the device's own: those that make tensors, change their storage, copy to and from the host, or read
// a number. All others are the CPU's, in fallback.cpp.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "support/pretend/aliases.h"
#include "support/pretend/memory.h"
#include "support/pretend/streams.h"

namespace hasten::testing::pretend {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

// A copy that does not block, between a device and pinned memory, is as late as a GPU may make it. It keeps the pinned
// memory, as CUDA's allocator does, and no memory of the device.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const bool to_host = !is_here(to), from_host = !is_here(from);
  const auto device = to_host ? from.device().index() : to.device().index();
  const at::Tensor host = to_host ? to : from;
  add(counted().copies);
  if (from_host && !to_host) add(counted().to_device_bytes, static_cast<int64_t>(from.nbytes()));
  note_write(to);
  const auto run = [from = from_host ? from : alias_of(from), to = to_host ? to : alias_of(to)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    to.copy_(from);
  };
  if (non_blocking && to_host != from_host && host.numel() > 0 && is_pinned(host.const_data_ptr())) {
    add(counted().late_copies);
    submit(current_stream(device), run);
    return to;
  }
  if (to_host) add(counted().waits);
  if (!from_host && !to_host && from.device() != to.device()) begin_kernel(from.device().index());
  begin_kernel(device);
  run();
  return to;
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  begin_kernel(tensor.device().index());
  add(counted().waits);
  return alias_of(tensor).item();
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  return tensor;
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return set_storage(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_whole(at::Tensor& tensor, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / tensor.dtype().itemsize());
  return set_storage(tensor, std::move(source), 0, {numel}, {});
}

at::Tensor& set_nothing(at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());
  at::Storage nothing(c10::Storage::use_byte_size_t(), 0, device_allocator().allocate(0), &device_allocator(), true);
  return set_storage(tensor, std::move(nothing), 0, {0}, {});
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  resize_here(tensor, C10_AS_INTARRAYREF_SLOW(sizes));
  if (format) tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return tensor;
}

// The formula of attention; the fused kernels are CUDA's own.
int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return 0;  // SDPBackend::math
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("set_", &set_nothing);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_.source_Storage", &set_whole);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("resize_", &resize);
  library.impl("_fused_sdp_choice", &choose_attention);
}

}  // namespace hasten::testing::pretend
