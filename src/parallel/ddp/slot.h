// Slot: a gradient's place in flat memory that holds several side by side.
//
// Returns a tensor that shares the flat memory without being an autograd view of it. So it can be a parameter's .grad()
// and survive libtorch's zero_grad().
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallel/ddp/gradient_allocator.h"

namespace hasten::parallel {

/// Bytes of a device's gradient from which on its copy takes longer than the start of a kernel. One that waited for
/// others would take memory as long.
inline constexpr size_t kLargeBytes = size_t{128} << 10;

/// Lays out the gradients of `parameters` one behind the other: offsets in elements. If `gradient_allocator` is not
/// nullptr, gradients that it may serve begin at its alignment. Returns the number of elements.
int64_t place_slots(const std::vector<at::Tensor>& parameters, const GradientAllocator* gradient_allocator,
                    std::vector<int64_t>& offsets);

/// Makes `slot` part of `flat`, with the parameter's shape and, where those are dense, its strides, which are
/// what autograd gives a gradient.
void set_slot(const at::Tensor& slot, const at::Tensor& flat, int64_t offset, const at::Tensor& parameter);

/// Gives another tensor in the slot's place, and makes `slot` a tensor of its own, with its values as they
/// are.
at::Tensor leave_slot(const at::Tensor& slot, const at::Tensor& flat, const at::Tensor& parameter);

/// Returns true if both tensors are defined and address the same elements of the same storage.
bool is_same_memory(const at::Tensor& a, const at::Tensor& b);

/// Returns true if no other tensor shares the memory of a gradient that autograd has made of `arrived` (undefined: it
/// has made none).
bool is_autograds_alone(const at::Tensor& gradient, const at::Tensor& arrived);

/// Copies the parameters' gradients into their slots, in few kernels. One that is there or undefined is passed over.
void fill_slots(const std::vector<at::Tensor>& slots, const std::vector<at::Tensor>& parameters);

/// slot = gradient * scale, in place where the gradient is in its slot.
void put_scaled(at::Tensor& slot, const at::Tensor& gradient, double scale);

}  // namespace hasten::parallel
