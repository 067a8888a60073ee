// See aliases.h.
#include "support/pretend/aliases.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>

#include "support/pretend/memory.h"
#include "support/pretend/streams.h"

namespace hasten::testing::pretend {
namespace {

size_t bytes_needed(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize(),
                                          static_cast<size_t>(tensor.storage_offset()));
}

}  // namespace

bool is_here(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

void note_write(const at::Tensor& tensor) {
  if (!is_here(tensor) || !tensor.has_storage() || tensor.numel() == 0) return;
  tensor.storage().unsafeGetStorageImpl()->mutable_data();
}

at::Tensor alias_of(const at::Tensor& tensor) {
  const c10::StorageImpl* own = tensor.storage().unsafeGetStorageImpl();
  TORCH_CHECK(own->nbytes() >= bytes_needed(tensor), "The tensor has a non-zero number of elements, but its data is ",
              "not allocated yet: a storage of ", own->nbytes(), " bytes for sizes ", tensor.sizes());
  auto* const begin = static_cast<char*>(const_cast<void*>(own->data()));
  auto alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), own->nbytes(), c10::DataPtr(begin, c10::Device(at::kCPU)),
                   c10::GetCPUAllocator(), /*resizable=*/true),
      c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

void resize_here(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  const auto bytes = at::detail::computeStorageNbytesContiguous(sizes, tensor.dtype().itemsize(),
                                                                static_cast<size_t>(tensor.storage_offset()));
  const at::Storage& storage = tensor.storage();
  if (bytes > storage.nbytes()) {
    const c10::DeviceGuard guard(tensor.device());
    c10::DataPtr memory = device_allocator().allocate(bytes);
    begin_kernel(tensor.device().index());
    if (storage.nbytes() > 0) std::memcpy(memory.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr(std::move(memory));
    storage.set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
}

}  // namespace hasten::testing::pretend
