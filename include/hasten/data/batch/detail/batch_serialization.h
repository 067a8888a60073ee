// Converts a batch to bytes and back, so that rank 0 can send it to the others. A batch has tensors with dtype and
// shape, numbers, strings, and the structures that comm/nested/nested.h walks.
//
// Comm's own objects (comm/nested/objects.h) travel as CBOR, which has no tensors. Its structures of tensors need the
// same shape on both sides beforehand, which a dispatched batch has not. Tensors lie at multiples of 64 bytes, so that
// the receiver's are views of the one buffer that came. Sending is dispatch.h's.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested.h"

namespace hasten::data::detail {

class ParcelWriter {
 public:
  void bytes(const void* data, size_t size);
  template <class T>
  void number(T value) {
    bytes(&value, sizeof(value));
  }
  void string(const std::string& value);
  /// Undefined ones travel too. From any device; arrives on the CPU.
  void tensor(const at::Tensor& tensor);
  /// Returns a uint8 tensor of all that was written.
  at::Tensor finish() const;

 private:
  std::vector<uint8_t> buffer_;
};

class ParcelReader {
 public:
  explicit ParcelReader(at::Tensor buffer);
  void bytes(void* data, size_t size);
  template <class T>
  T number() {
    T value;
    bytes(&value, sizeof(value));
    return value;
  }
  std::string string();
  at::Tensor tensor();

 private:
  const uint8_t* take(size_t size);
  at::Tensor buffer_;
  size_t at_ = 0;
};

template <class T>
inline constexpr bool kIsPlain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <class T>
void write(ParcelWriter& to, T& value) {
  namespace nested = comm::detail;
  if constexpr (std::same_as<T, at::Tensor>) {
    to.tensor(value);
  } else if constexpr (comm::HasFields<T>) {
    std::apply([&](auto&... fields) { (write(to, fields), ...); }, hasten_fields(value));
  } else if constexpr (kIsPlain<T>) {
    to.number(value);
  } else if constexpr (std::same_as<T, std::string>) {
    to.string(value);
  } else if constexpr (nested::kIs<T, std::vector>) {
    to.number<uint64_t>(value.size());
    for (auto&& element : value) {
      if constexpr (std::same_as<typename T::value_type, bool>) {
        to.number<bool>(element);
      } else {
        write(to, element);
      }
    }
  } else if constexpr (nested::kIs<T, std::pair> || nested::kIs<T, std::tuple> || nested::kIsArray<T>) {
    std::apply([&](auto&... elements) { (write(to, elements), ...); }, value);
  } else if constexpr (nested::kIs<T, std::optional>) {
    to.number(value.has_value());
    if (value) write(to, *value);
  } else if constexpr (nested::kIsExample<T>) {
    write(to, value.data);
    if constexpr (requires { value.target; }) write(to, value.target);
  } else if constexpr (requires { typename T::mapped_type; }) {
    to.number<uint64_t>(value.size());
    for (auto& [key, element] : value) {
      auto copy = key;
      write(to, copy);
      write(to, element);
    }
  } else {
    static_assert(nested::kUnsupported<T>,
                  "dispatch_batches: a batch may hold tensors, numbers, std::string and "
                  "structures of these; name those of a struct by hasten_fields");
  }
}

template <class T>
void read(ParcelReader& from, T& value) {
  namespace nested = comm::detail;
  if constexpr (std::same_as<T, at::Tensor>) {
    value = from.tensor();
  } else if constexpr (comm::HasFields<T>) {
    std::apply([&](auto&... fields) { (read(from, fields), ...); }, hasten_fields(value));
  } else if constexpr (kIsPlain<T>) {
    value = from.number<T>();
  } else if constexpr (std::same_as<T, std::string>) {
    value = from.string();
  } else if constexpr (nested::kIs<T, std::vector>) {
    value.clear();
    const auto size = from.number<uint64_t>();
    value.reserve(size);
    for (uint64_t i = 0; i < size; ++i) {
      typename T::value_type element{};
      read(from, element);
      value.push_back(std::move(element));
    }
  } else if constexpr (nested::kIs<T, std::pair> || nested::kIs<T, std::tuple> || nested::kIsArray<T>) {
    std::apply([&](auto&... elements) { (read(from, elements), ...); }, value);
  } else if constexpr (nested::kIs<T, std::optional>) {
    value.reset();
    if (from.number<bool>()) read(from, value.emplace());
  } else if constexpr (nested::kIsExample<T>) {
    read(from, value.data);
    if constexpr (requires { value.target; }) read(from, value.target);
  } else {
    value.clear();
    const auto size = from.number<uint64_t>();
    for (uint64_t i = 0; i < size; ++i) {
      typename T::key_type key{};
      read(from, key);
      read(from, value[std::move(key)]);
    }
  }
}

}  // namespace hasten::data::detail
