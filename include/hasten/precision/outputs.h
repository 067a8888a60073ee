// Casts of a model's inputs and outputs, in any nested structure (comm/nested/nested.h).
//
// Accelerate's convert_outputs_to_fp32, and the input casts of Apex's O2 and O3.
#pragma once

#include <ATen/core/Tensor.h>

#include "hasten/comm/nested/nested.h"

namespace hasten::precision {

/// Returns float16 and bfloat16 tensors as float32. All others, and everything that is no tensor, stay as they are.
inline at::Tensor to_float32(const at::Tensor& tensor) {
  const auto dtype = tensor.defined() ? tensor.scalar_type() : at::kFloat;
  return dtype == at::kHalf || dtype == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}
template <class T>
T to_float32(const T& value) {
  return comm::map_tensors(value, [](const at::Tensor& tensor) { return to_float32(tensor); });
}

/// Floating-point tensors in `dtype`; integers, booleans and complex numbers as they are, so labels stay exact.
inline at::Tensor cast_inputs(at::ScalarType dtype, const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
}
template <class T>
T cast_inputs(at::ScalarType dtype, const T& value) {
  return comm::map_tensors(value, [dtype](const at::Tensor& tensor) { return cast_inputs(dtype, tensor); });
}

namespace detail {

template <class T>
constexpr bool is_nested();
template <class Tuple>
struct AllNested;
template <template <class...> class Tuple, class... Args>
struct AllNested<Tuple<Args...>> : std::bool_constant<(is_nested<Args>() && ...)> {};

template <class T>
constexpr bool is_nested() {
  namespace nested = comm::detail;
  if constexpr (std::same_as<T, at::Tensor> || comm::HasFields<T> || nested::kIsLeaf<T>) {
    return true;
  } else if constexpr (nested::kIs<T, std::vector> || nested::kIsArray<T> || nested::kIs<T, std::optional>) {
    return is_nested<typename T::value_type>();
  } else if constexpr (nested::kIs<T, std::pair> || nested::kIs<T, std::tuple>) {
    return nested::kOwnsElements<T> && AllNested<T>::value;
  } else if constexpr (nested::kIs<T, std::map> || nested::kIs<T, std::unordered_map>) {
    return is_nested<typename T::mapped_type>();
  } else {
    return false;
  }
}

}  // namespace detail

/// Whether map_tensors supports the type, inside too. Inputs and outputs of other types pass as they are.
template <class T>
concept Nested = detail::is_nested<T>();

}  // namespace hasten::precision
