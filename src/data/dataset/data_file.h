// Files of datasets as memory: mapped, not read, so that opening costs nothing and processes share the pages.
//
// Private to the room; npy.cpp, safetensors.cpp, text_lines.cpp and csv.cpp read through it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "hasten/files/disk/mapped_file.h"

namespace hasten::data {

using DataFile = std::shared_ptr<const files::MappedFile>;

/// Maps the file so that tensors over it may be written to. `expected` ("a .npy file") is the expected kind of file.
/// Blocks: on the file. Throws: DataError if it cannot be opened or mapped, or is a stand-in of Git
/// LFS.
DataFile open_data_file(const std::string& path, std::string_view expected);

/// Returns a tensor over the file's bytes from `offset` on, which keeps the file mapped. Writing to it changes neither
/// the file nor what others see of it. Where the offset is not aligned for the dtype, the values are copied. The caller
/// has checked that the file holds them.
at::Tensor tensor_over(const DataFile& file, size_t offset, at::IntArrayRef shape, at::IntArrayRef strides,
                       at::ScalarType dtype);

}  // namespace hasten::data
