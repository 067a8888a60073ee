// Values of tensors in Python's files; see python_file.h.
#include <algorithm>
#include <cstring>
#include <limits>

#include "files/base/origin.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

void reverse_parts(char* bytes, size_t size, size_t part) {
  for (size_t at = 0; part > 1 && at + part <= size; at += part) std::reverse(bytes + at, bytes + at + part);
}

/// Flips the sign of the parts of numbers from `first` on, every `step` parts. The sign is the top bit of each part.
void negate(char* bytes, size_t size, size_t part, size_t first, size_t step) {
  for (size_t at = first * part; at + part <= size; at += step * part)
    bytes[at + part - 1] = static_cast<char>(bytes[at + part - 1] ^ 0x80);
}

/// First and last element of the box in the storage.
struct ElementExtent {
  int64_t first, last;
};

ElementExtent extent_of(const PythonTensor& tensor, const Box& box) {
  ElementExtent extent{tensor.offset, tensor.offset};
  for (size_t d = 0; d < box.size.size(); ++d) {
    extent.first += box.offset[d] * tensor.stride[d];
    extent.last += (box.offset[d] + box.size[d] - 1) * tensor.stride[d];
  }
  return extent;
}

}  // namespace

void read_tensor(const PythonTensor& tensor, const Box& box, void* target) {
  if (!tensor.unreadable.empty())
    throw DataError(kOrigin, "", "a tensor cannot be read, since ", tensor.unreadable, ".");
  if (tensor.is_meta()) throw DataError(kOrigin, "", "a tensor on the device meta has no values.");
  const int64_t numel = numel_of(box);
  if (numel == 0) return;
  const size_t item = element_bytes(tensor.dtype), bytes = static_cast<size_t>(numel) * item;
  const ElementExtent extent = extent_of(tensor, box);
  Box whole{std::vector<int64_t>(box.size.size(), 0), box.size};
  if (tensor.storage->data != nullptr) {
    copy_strided(tensor.storage->data + extent.first * static_cast<int64_t>(item), tensor.stride, whole, target, item);
  } else {
    std::string part(static_cast<size_t>(extent.last - extent.first + 1) * item, '\0');
    tensor.storage->read(static_cast<uint64_t>(extent.first) * item, part.size(), part.data());
    copy_strided(part.data(), tensor.stride, whole, target, item);
  }
  char* out = static_cast<char*>(target);
  const size_t part = swap_bytes(tensor.dtype);
  if (tensor.storage->swapped) reverse_parts(out, bytes, part);
  const bool complex = part * 2 == item;
  if (tensor.conj && complex) negate(out, bytes, part, 1, 2);
  if (tensor.neg && (complex || is_floating_point(tensor.dtype))) negate(out, bytes, part, 0, 1);
}

PythonValue tensor_value(Dtype dtype, std::vector<int64_t> shape, const void* data, std::shared_ptr<const void> owner) {
  auto storage = std::make_shared<PythonStorage>();
  storage->dtype = dtype;
  storage->bytes = numel_of(shape) * static_cast<int64_t>(element_bytes(dtype));
  storage->data = static_cast<const char*>(data);
  storage->owner = std::move(owner);
  PythonTensor tensor{.storage = std::move(storage), .dtype = dtype, .shape = std::move(shape)};
  tensor.stride = contiguous_strides(tensor.shape);
  return tensor;
}

}  // namespace hasten::files
