// Tensors of the CPU over the bytes of the pretend device's, for the CPU's kernels.
#pragma once

#include <ATen/core/Tensor.h>

namespace hasten::testing::pretend {

bool is_here(const at::Tensor& tensor);

/// Does what a kernel's mutable pointer does: a copy-on-write storage gets bytes of its own, its callback runs.
void note_write(const at::Tensor& tensor);

/// Does not keep the memory, as little as a GPU's kernel keeps it. Throws for a tensor whose memory is not allocated.
at::Tensor alias_of(const at::Tensor& tensor);

/// Grows the storage where the sizes need it, keeping what it holds; strides become contiguous.
void resize_here(const at::Tensor& tensor, c10::IntArrayRef sizes);

}  // namespace hasten::testing::pretend
