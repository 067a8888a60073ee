// Casts of a model's inputs and outputs, in any nested structure (comm/nested.h).
//
// Accelerate's convert_outputs_to_fp32, and the input casts of Apex's O2 and O3.
#pragma once

#include <ATen/core/Tensor.h>

#include "hasten/comm/nested/nested.h"

namespace hasten::precision {

/// Float16 and bfloat16 tensors as float32; all others, and everything that is no tensor, as it is.
/// Collective: no. Blocks: no. Throws: nothing.
inline at::Tensor to_float32(const at::Tensor& tensor) {
  const auto dtype = tensor.defined() ? tensor.scalar_type() : at::kFloat;
  return dtype == at::kHalf || dtype == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}
template <class T>
T to_float32(const T& value) {
  return comm::map_tensors(value, [](const at::Tensor& tensor) { return to_float32(tensor); });
}

/// Floating-point tensors in `dtype`; integers, booleans and complex numbers as they are, so labels stay exact.
/// Collective: no. Blocks: no. Throws: nothing.
inline at::Tensor cast_inputs(at::ScalarType dtype, const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
}
template <class T>
T cast_inputs(at::ScalarType dtype, const T& value) {
  return comm::map_tensors(value, [dtype](const at::Tensor& tensor) { return cast_inputs(dtype, tensor); });
}

/// Whether map_tensors knows the type; other outputs of a model pass as they are.
template <class T>
concept Nested = std::same_as<T, at::Tensor> || comm::HasFields<T> || comm::detail::kIs<T, std::vector> ||
                 comm::detail::kIsArray<T> || comm::detail::kIs<T, std::pair> || comm::detail::kIs<T, std::tuple> ||
                 comm::detail::kIs<T, std::optional> || comm::detail::kIs<T, std::map> ||
                 comm::detail::kIs<T, std::unordered_map>;

}  // namespace hasten::precision
