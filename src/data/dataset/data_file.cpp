// See data_file.h.
#include "data/dataset/data_file.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>

#include "hasten/files/base/stand_in.h"

namespace hasten::data {

DataFile open_data_file(const std::string& path, std::string_view expected) {
  auto file = files::MappedFile::open(path, {.private_writes = true, .expected = expected, .origin = {"data"}});
  // A web page is a text like any other; a pointer of Git LFS is none.
  const bool may_be_page = expected == "a text file" && !file->bytes().starts_with("version ");
  if (!may_be_page) files::refuse_stand_in(path, file->bytes());
  return file;
}

at::Tensor tensor_over(const DataFile& file, size_t offset, at::IntArrayRef shape, at::IntArrayRef strides,
                       at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const size_t item = c10::elementSize(dtype);
  size_t bytes = item;
  for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
  if (bytes == 0) return at::empty_strided(shape, strides, options);
  char* from = const_cast<char*>(file->bytes().data()) + offset;
  if (reinterpret_cast<uintptr_t>(from) % item == 0) {
    return at::from_blob(
        from, shape, strides, [file](void*) {}, options);
  }
  const at::Tensor copy = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  std::memcpy(copy.mutable_data_ptr(), from, bytes);
  return at::from_blob(
      copy.mutable_data_ptr(), shape, strides, [copy](void*) {}, options);
}

}  // namespace hasten::data
