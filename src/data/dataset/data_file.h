// A file as memory: mapped, not read, so that opening costs nothing and processes share the pages.
//
// Private to the room; npy.cpp, safetensors.cpp, text_lines.cpp and csv.cpp read through it. A mapped file
// must not be cut short while it is in use: the system ends programs that touch what is gone (SIGBUS).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace hasten::data {

class MappedFile {
 public:
  /// `expected` ("a .npy file") is the expected kind of file in the error.
  /// Collective: no. Blocks: on the file. Throws: DataError if it cannot be opened or mapped.
  MappedFile(const std::string& path, std::string_view expected);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const noexcept { return {data_, size_}; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

/// Returns a tensor over the file's bytes from `offset` on, which keeps the file mapped. Writing to it changes neither
/// the file nor what others see of it. Where the offset is not aligned for the dtype, the values are copied. The caller
/// has checked that the file holds them.
at::Tensor tensor_over(const std::shared_ptr<MappedFile>& file, size_t offset, at::IntArrayRef shape,
                       at::IntArrayRef strides, at::ScalarType dtype);

}  // namespace hasten::data
