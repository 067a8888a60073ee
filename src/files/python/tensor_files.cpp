// See tensor_files.h.
#include "files/python/tensor_files.h"

namespace hasten::files {

std::optional<TensorLocation> plain_location(const PythonTensor& tensor) {
  if (!tensor.unreadable.empty() || tensor.storage == nullptr || tensor.storage->path.empty() ||
      tensor.storage->swapped || tensor.conj || tensor.neg) {
    return std::nullopt;
  }
  const uint64_t begin = tensor.storage->offset + static_cast<uint64_t>(tensor.offset) * element_bytes(tensor.dtype);
  return TensorLocation{tensor.storage->path, begin, tensor.stride};
}

void TensorFiles::read(const PythonTensor& tensor, const Box& box, void* target) const {
  const auto plain = plain_location(tensor);
  if (!plain || tensor.stride != contiguous_strides(tensor.shape)) return read_tensor(tensor, box, target);
  read_box(*opened(plain->path), plain->offset, tensor.shape, box, element_bytes(tensor.dtype), target);
}

std::shared_ptr<const PosixFile> TensorFiles::opened(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  auto& file = files_[path];
  if (file == nullptr) file = SourceFile::open(path);
  return file->opened();
}

}  // namespace hasten::files
