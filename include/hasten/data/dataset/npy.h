// NumPy's .npy files as tensors, mapped: opening reads the header alone, whatever the file's size.
//
// For a dataset hand the tensors to TensorDataset (tensor_dataset.h): a batch then reads its rows' pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace hasten::data {

/// Returns the array of a .npy file (format 1.0, 2.0 or 3.0) as a CPU tensor of its shape. Types: bool, integers of 8
/// to 64 bits, float16 to float64, complex64, complex128. Arrays in Fortran order come with such strides. Values in the
/// other byte order are read and swapped. All others stay in the file, which must not change while the tensor exists.
/// Writing to the tensor does not change the file. Bytes after the array are left alone, as NumPy leaves them.
/// Blocks: on the file. Throws: DataError (path, values) if the file is missing, damaged, truncated or
/// no .npy file; DataError for values without a dtype in torch (objects, text, dates, records).
at::Tensor map_npy(const std::string& path);

}  // namespace hasten::data
