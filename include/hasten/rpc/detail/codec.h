// Codec: how a type is written; numbers, text, tensors and structs. The standard's containers are in containers.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>

#include <concepts>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/rpc/detail/members.h"
#include "hasten/rpc/writer.h"

namespace hasten::rpc {

/// How a T is written and read. Specialise it for a type that values.h lacks.
template <class T>
struct Codec;

namespace detail {

template <class T>
concept HasFields = requires(T& value) { hasten_fields(value); };
template <class T>
concept PlainStruct = std::is_aggregate_v<T> && std::is_class_v<T> && !HasFields<T> && (num_members<T>() > 0);

template <class T>
constexpr std::string_view spelling() {
  return __PRETTY_FUNCTION__;
}
/// Returns the compiler's name of T.
template <class T>
std::string type_name() {
  const std::string_view all = spelling<T>();
  const size_t begin = all.find("T = ") + 4;
  return std::string(all.substr(begin, all.find_first_of(";]", begin) - begin));
}

template <class T>
inline constexpr bool cannot_travel = false;
template <class T>
constexpr bool travels();

template <class T>
void write(Writer& to, const T& value) {
  Codec<T>::write(to, value);
}
template <class T>
T read(Reader& from) {
  return Codec<T>::read(from);
}
template <class T>
std::string describe() {
  return Codec<T>::describe();
}

template <class T>
struct FieldsCodec {
  static auto fields(T& value) {
    if constexpr (HasFields<T>) {
      return hasten_fields(value);
    } else {
      return members(value);
    }
  }
  static void write(Writer& to, const T& value) {
    std::apply([&](auto&... field) { (detail::write(to, field), ...); }, fields(const_cast<T&>(value)));
  }
  static T read(Reader& from) {
    const Reader::Level level(from);
    T value{};
    std::apply([&](auto&... field) { ((field = detail::read<std::remove_cvref_t<decltype(field)>>(from)), ...); },
               fields(value));
    return value;
  }
  static constexpr bool parts_travel() {
    return fields_travel(static_cast<decltype(fields(std::declval<T&>()))*>(nullptr));
  }
  static std::string describe() {
    std::string text = type_name<T>() + "{";
    using Fields = decltype(fields(std::declval<T&>()));
    add_fields(text, static_cast<Fields*>(nullptr));
    return text + "}";
  }

 private:
  template <class... F>
  static void add_fields(std::string& text, std::tuple<F...>*) {
    [[maybe_unused]] const char* comma = "";
    // A struct that holds itself is named, not described again.
    ((text += comma,
      text += holds_itself<std::remove_cvref_t<F>>() ? "self" : detail::describe<std::remove_cvref_t<F>>(),
      comma = ","),
     ...);
  }
  template <class... F>
  static constexpr bool fields_travel(std::tuple<F...>*) {
    return (... && (holds_itself<std::remove_cvref_t<F>>() || travels<std::remove_cvref_t<F>>()));
  }
  template <class F>
  static constexpr bool holds_itself() {
    return std::is_same_v<F, std::vector<T>> || std::is_same_v<F, std::optional<T>>;
  }
};

template <class T>
std::string number_name() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  std::string name(1, std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u');
  name += std::to_string(8 * sizeof(T));
  return name;
}

void write_scalar(Writer& to, const c10::Scalar& value);
c10::Scalar read_scalar(Reader& from);

}  // namespace detail

template <class T>
struct Codec {
  using unknown = void;
  template <class U = T>
  static void write(Writer&, const U&) {
    refuse<U>();
  }
  template <class U = T>
  static U read(Reader&) {
    refuse<U>();
  }
  template <class U = T>
  static std::string describe() {
    refuse<U>();
    return "";
  }

 private:
  template <class U>
  static void refuse() {
    static_assert(
        detail::cannot_travel<U>,
        "hasten::rpc: a value of this type cannot travel. Give its class friend auto hasten_fields(T& t) { return "
        "std::tie(t.a, t.b); }, or specialise hasten::rpc::Codec<T>.");
  }
};

namespace detail {
/// Whether a T can be written, with all that it holds.
template <class T>
constexpr bool travels() {
  if constexpr (requires { typename Codec<T>::unknown; }) {
    return false;
  } else if constexpr (requires { Codec<T>::parts_travel(); }) {
    return Codec<T>::parts_travel();
  } else {
    return true;
  }
}
}  // namespace detail

template <class T>
  requires detail::PlainStruct<T> || detail::HasFields<T>
struct Codec<T> : detail::FieldsCodec<T> {};

template <class T>
  requires std::is_arithmetic_v<T>
struct Codec<T> {
  static void write(Writer& to, T value) { to.number(value); }
  static T read(Reader& from) {
    if constexpr (std::is_same_v<T, bool>) return from.number<uint8_t>() != 0;
    return from.number<T>();
  }
  static std::string describe() { return detail::number_name<T>(); }
};
template <class T>
  requires std::is_enum_v<T>
struct Codec<T> {
  static void write(Writer& to, T value) { to.number(value); }
  static T read(Reader& from) { return from.number<T>(); }
  static std::string describe() { return detail::type_name<T>(); }
};
template <>
struct Codec<std::string> {
  static void write(Writer& to, const std::string& value) { to.string(value); }
  static std::string read(Reader& from) { return from.string(); }
  static std::string describe() { return "string"; }
};
template <>
struct Codec<std::filesystem::path> {
  static void write(Writer& to, const std::filesystem::path& value) { to.string(value.string()); }
  static std::filesystem::path read(Reader& from) { return from.string(); }
  static std::string describe() { return "path"; }
};
template <>
struct Codec<core::Value> {
  static void write(Writer& to, const core::Value& value) { to.string(value.to_json()); }
  static core::Value read(Reader& from) { return core::Value::parse_json(from.string(), "a call's value"); }
  static std::string describe() { return "value"; }
};
template <>
struct Codec<at::Tensor> {
  static void write(Writer& to, const at::Tensor& value) { to.tensor(value); }
  static at::Tensor read(Reader& from) { return from.tensor(); }
  static std::string describe() { return "tensor"; }
};
template <>
struct Codec<c10::Scalar> {
  static void write(Writer& to, const c10::Scalar& value) { detail::write_scalar(to, value); }
  static c10::Scalar read(Reader& from) { return detail::read_scalar(from); }
  static std::string describe() { return "scalar"; }
};
template <>
struct Codec<c10::Device> {
  static void write(Writer& to, const c10::Device& value) { to.string(value.str()); }
  static c10::Device read(Reader& from) { return c10::Device(from.string()); }
  static std::string describe() { return "device"; }
};
template <>
struct Codec<std::monostate> {
  static void write(Writer&, std::monostate) {}
  static std::monostate read(Reader&) { return {}; }
  static std::string describe() { return "none"; }
};

}  // namespace hasten::rpc
