// Versions of tensors that are written to past the dispatcher.
//
// Autograd's check of changed tensors, recorders of recompute and low-precision copies see a change by the version
// only. Code that writes through a pointer, or lets another library do so, calls bump_version afterwards.
#pragma once

#include <ATen/core/Tensor.h>

namespace hasten::compat {

/// Counts one change of the tensor, as an in-place operator does. Inference tensors have no version.
inline void bump_version(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace hasten::compat
