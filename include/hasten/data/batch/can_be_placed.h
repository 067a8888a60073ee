// Which batches can go to a device: those in which comm/nested/nested.h finds the tensors. The check is here and not
// there. There a type that cannot be walked is a compile error, and a loader on the CPU may give any type.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested.h"

namespace hasten::data {

namespace detail {

/// Whether comm::map_tensors takes a T; asking it would be a compile error where it does not.
template <class T>
consteval bool walks() {
  namespace nested = comm::detail;
  if constexpr (std::is_same_v<T, at::Tensor> || comm::HasFields<T> || nested::kIsLeaf<T>) {
    return true;
  } else if constexpr (requires { typename T::mapped_type; }) {
    return walks<typename T::mapped_type>();
  } else if constexpr (nested::kIsExample<T>) {
    using Target = typename T::TargetType;
    return walks<typename T::DataType>() && walks<std::conditional_t<std::is_void_v<Target>, int, Target>>();
  } else if constexpr (nested::kIs<T, std::vector> || nested::kIsArray<T> || nested::kIs<T, std::optional>) {
    return walks<typename T::value_type>();
  } else if constexpr (nested::kIs<T, std::pair> || nested::kIs<T, std::tuple>) {
    return []<template <class...> class Tuple, class... Args>(const Tuple<Args...>*) {
      return (walks<Args>() && ...);
    }(static_cast<const T*>(nullptr));
  } else {
    return false;
  }
}

}  // namespace detail

/// Whether a batch of this type can be moved to a device. A struct of yours can once it has hasten_fields
/// (comm/nested/nested.h). Until then it stays where the dataset made it.
template <class Batch>
inline constexpr bool can_be_placed = detail::walks<Batch>();

}  // namespace hasten::data
