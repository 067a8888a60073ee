// Giving a tensor other contents while it stays the same object.
//
// A module's member, its dictionary entry, tied members and an optimizer all hold one TensorImpl. Only its storage,
// device and dtype are exchanged here, so all of them follow. set_data refuses meta to cpu, and a new dictionary entry
// would leave the member behind.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "hasten/core/error.h"
#include "hasten/files/base/dtype.h"

namespace hasten::offload {

/// Gives `tensor` the storage, dtype and device of `value`. requires_grad, gradients' hooks, ties and names stay.
/// Interceptors of `tensor` are lost: they are added after its contents (interception/interceptor.h).
/// Throws: UsageError if the shapes differ.
void set_tensor(const at::Tensor& tensor, const at::Tensor& value);

/// Returns the element type of a file's tensor. Throws: UsageError for a type that libtorch lacks.
at::ScalarType scalar_type_of(files::Dtype dtype);
files::Dtype file_dtype_of(at::ScalarType type);
/// PyTorch's name without "torch.": "float32".
std::string_view dtype_name(at::ScalarType type);
/// Throws: UsageError, with the nearest name.
at::ScalarType scalar_type_of_name(std::string_view name);

}  // namespace hasten::offload
