// Walks several batches of one structure together and makes one batch of them. Cutting, joining (batch_rows.h) and
// putting in order (concat.h) use it.
//
// comm/nested/nested.h's walk has tensors alone. Samples have texts and lists, too. A tensor has a row a sample, and a
// std::vector in which there are no tensors an element a sample. Anything else without tensors (a number, a text)
// belongs to the batch as a whole. It stays if all batches agree on it, and is refused otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested.h"
#include "hasten/core/text.h"

namespace hasten::data::detail {

template <class T>
inline constexpr bool kIsTuple = comm::detail::kIs<T, std::pair> || comm::detail::kIs<T, std::tuple>;

/// The members that hold a struct's or a tuple's data.
template <class T>
decltype(auto) fields_of(T& value) {
  if constexpr (comm::HasFields<T>) {
    return hasten_fields(value);
  } else {
    return (value);
  }
}
template <class T>
using Fields = std::remove_cvref_t<decltype(fields_of(std::declval<T&>()))>;

/// Whether a T has a place for tensors.
template <class T>
consteval bool may_hold_tensors() {
  namespace nested = comm::detail;
  if constexpr (std::same_as<T, at::Tensor>) {
    return true;
  } else if constexpr (comm::HasFields<T> || kIsTuple<T>) {
    return []<size_t... i>(std::index_sequence<i...>) {
      return (may_hold_tensors<std::remove_cvref_t<std::tuple_element_t<i, Fields<T>>>>() || ...);
    }(std::make_index_sequence<std::tuple_size_v<Fields<T>>>());
  } else if constexpr (nested::kIsLeaf<T>) {
    return false;
  } else if constexpr (requires { typename T::mapped_type; }) {
    return may_hold_tensors<typename T::mapped_type>();
  } else if constexpr (requires { typename T::value_type; }) {
    return may_hold_tensors<typename T::value_type>();
  } else {
    return true;
  }
}

/// `first` and `other` say what two batches have in the same place.
[[noreturn]] void throw_batches_differ(const std::string& first, const std::string& other);

/// Returns the same part of each value.
template <class T, class Fn>
auto parts_of(const std::vector<T*>& values, Fn&& part) {
  std::vector<decltype(&part(*values.front()))> parts;
  for (T* value : values) parts.push_back(&part(*value));
  return parts;
}

template <class T>
std::string leaf_text(const T& leaf) {
  if constexpr (std::is_arithmetic_v<T>) {
    return text(leaf);
  } else if constexpr (std::convertible_to<T, std::string_view>) {
    return text("'", std::string_view(leaf).substr(0, 60), "'");
  } else {
    return "another value";
  }
}

template <class T>
void expect_equal(const T& first, const T& other) {
  if constexpr (std::convertible_to<T, std::string_view>) {
    if (std::string_view(first) == std::string_view(other)) return;
  } else {
    if (first == other || (first != first && other != other)) return;  // two NaN agree
  }
  throw_batches_differ(leaf_text(first), leaf_text(other));
}

inline void expect_as_many(size_t first, size_t other, const char* what) {
  if (first != other) throw_batches_differ(text(first, " ", what), text(other, " ", what));
}

/// Makes one of several values of one structure, in the first of them. `rows.tensors(list)` makes one tensor
/// of those in the same place, `rows.elements(pointers)` one vector.
/// Throws: UsageError where the values differ; what `rows` throws.
template <class T, class Rows>
void merge(const std::vector<T*>& values, Rows& rows);

template <class Rows>
void merge_tensors(const std::vector<at::Tensor*>& values, Rows& rows) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* value : values) {
    if (value->defined()) tensors.push_back(*value);
  }
  if (tensors.empty()) return;
  if (tensors.size() < values.size()) throw_batches_differ("a tensor", "an undefined one");
  *values.front() = rows.tensors(tensors);
}

template <class T, class Rows>
void merge_map(const std::vector<T*>& values, Rows& rows) {
  for (auto& [key, unused] : *values.front()) {
    const auto element = [&key = key](T& value) -> auto& {
      const auto found = value.find(key);
      if (found == value.end()) throw_batches_differ(text("an entry '", key, "'"), "none");
      return found->second;
    };
    merge(parts_of(values, element), rows);
  }
  for (const T* value : values) expect_as_many(values.front()->size(), value->size(), "entries");
}

template <class T, class Rows>
void merge(const std::vector<T*>& values, Rows& rows) {
  namespace nested = comm::detail;
  T& first = *values.front();
  if constexpr (std::same_as<T, at::Tensor>) {
    merge_tensors(values, rows);
  } else if constexpr (comm::HasFields<T> || kIsTuple<T>) {
    [&]<size_t... i>(std::index_sequence<i...>) {
      (merge(parts_of(values, [](T& value) -> auto& { return std::get<i>(fields_of(value)); }), rows), ...);
    }(std::make_index_sequence<std::tuple_size_v<Fields<T>>>());
  } else if constexpr (nested::kIsLeaf<T>) {
    for (const T* value : values) expect_equal(first, *value);
  } else if constexpr (nested::kIs<T, std::vector> && !may_hold_tensors<T>()) {
    first = rows.elements(values);
  } else if constexpr (nested::kIs<T, std::vector> || nested::kIsArray<T>) {
    for (const T* value : values) expect_as_many(first.size(), value->size(), "elements");
    for (size_t i = 0; i < first.size(); ++i) {
      merge(parts_of(values, [i](T& value) -> auto& { return value[i]; }), rows);
    }
  } else if constexpr (nested::kIs<T, std::optional>) {
    for (const T* value : values) {
      if (first.has_value() != value->has_value()) throw_batches_differ("an optional value", "none");
    }
    if (first) merge(parts_of(values, [](T& value) -> auto& { return *value; }), rows);
  } else if constexpr (nested::kIsExample<T>) {
    merge(parts_of(values, [](T& value) -> auto& { return value.data; }), rows);
    if constexpr (requires { first.target; }) {
      merge(parts_of(values, [](T& value) -> auto& { return value.target; }), rows);
    }
  } else {
    merge_map(values, rows);
  }
}

}  // namespace hasten::data::detail
