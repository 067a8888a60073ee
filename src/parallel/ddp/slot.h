// Slot: a gradient's place in flat memory that holds several side by side.
//
// A tensor that shares the flat memory without being an autograd view of it, so that it can be a parameter's
// .grad() and survive libtorch's zero_grad().
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallel/ddp/gradient_allocator.h"

namespace hasten::parallel {

/// Where the gradients of `parameters` lie, in elements, one behind the other; those that may be born there
/// (`gradient_allocator`, nullptr: none) begin where an allocator's memory could. Returns how many elements they
/// take.
int64_t place_slots(const std::vector<at::Tensor>& parameters, const GradientAllocator* gradient_allocator,
                    std::vector<int64_t>& offsets);

/// Makes `slot` part of `flat`, with the parameter's shape and, where those are dense, its strides, which are
/// what autograd gives a gradient.
void set_slot(const at::Tensor& slot, const at::Tensor& flat, int64_t offset, const at::Tensor& parameter);

/// Gives another tensor in the slot's place, and makes `slot` a tensor of its own, with its values as they
/// are.
at::Tensor leave_slot(const at::Tensor& slot, const at::Tensor& flat, const at::Tensor& parameter);

/// Whether the two are one tensor's memory, element by element, whoever says so; an undefined one is not.
bool is_same_memory(const at::Tensor& a, const at::Tensor& b);

/// Whether nobody else shares the memory of a gradient that autograd has made of `arrived` (undefined: it has
/// made none).
bool is_autograds_alone(const at::Tensor& gradient, const at::Tensor& arrived);

/// to = from * scale
void scaled_copy(at::Tensor& to, const at::Tensor& from, double scale);

}  // namespace hasten::parallel
