// How the standard's containers are written.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "hasten/rpc/detail/codec.h"

namespace hasten::rpc {
namespace detail {

template <class C>
struct SequenceCodec {
  using V = typename C::value_type;
  static constexpr bool parts_travel() { return travels<V>(); }
  static void write(Writer& to, const C& values) {
    to.size(values.size());
    for (const V& value : values) detail::write(to, value);
  }
  static C read(Reader& from) {
    const Reader::Level level(from);
    C values;
    // An element may take no byte (an empty struct does not travel), so each is counted as one at least.
    const size_t count = from.size();
    for (size_t i = 0; i < count; ++i) values.insert(values.end(), detail::read<V>(from));
    return values;
  }
};
template <class M>
struct MapCodec {
  static constexpr bool parts_travel() { return travels<typename M::key_type>() && travels<typename M::mapped_type>(); }
  static void write(Writer& to, const M& values) {
    to.size(values.size());
    for (const auto& [key, value] : values) {
      detail::write(to, key);
      detail::write(to, value);
    }
  }
  static M read(Reader& from) {
    const Reader::Level level(from);
    M values;
    const size_t count = from.size();
    for (size_t i = 0; i < count; ++i) {
      auto key = detail::read<typename M::key_type>(from);
      values.emplace(std::move(key), detail::read<typename M::mapped_type>(from));
    }
    return values;
  }
  static std::string describe() {
    return "map<" + detail::describe<typename M::key_type>() + "," + detail::describe<typename M::mapped_type>() + ">";
  }
};

}  // namespace detail

template <class Rep, class Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using D = std::chrono::duration<Rep, Period>;
  static void write(Writer& to, const D& value) { to.number(value.count()); }
  static D read(Reader& from) { return D(from.number<Rep>()); }
  static std::string describe() {
    return "duration<" + detail::number_name<Rep>() + "," + std::to_string(Period::num) + "/" +
           std::to_string(Period::den) + ">";
  }
};
template <class Clock, class D>
struct Codec<std::chrono::time_point<Clock, D>> {
  using P = std::chrono::time_point<Clock, D>;
  static void write(Writer& to, const P& value) { detail::write(to, value.time_since_epoch()); }
  static P read(Reader& from) { return P(detail::read<D>(from)); }
  static std::string describe() { return "time<" + detail::describe<D>() + ">"; }
};
template <class T>
struct Codec<std::optional<T>> {
  static void write(Writer& to, const std::optional<T>& value) {
    to.number<uint8_t>(value.has_value());
    if (value) detail::write(to, *value);
  }
  static std::optional<T> read(Reader& from) {
    if (from.number<uint8_t>() == 0) return std::nullopt;
    return detail::read<T>(from);
  }
  static std::string describe() { return "optional<" + detail::describe<T>() + ">"; }
};
template <class A, class B>
struct Codec<std::pair<A, B>> {
  static void write(Writer& to, const std::pair<A, B>& value) {
    detail::write(to, value.first);
    detail::write(to, value.second);
  }
  static std::pair<A, B> read(Reader& from) {
    A first = detail::read<A>(from);
    return {std::move(first), detail::read<B>(from)};
  }
  static std::string describe() { return "(" + detail::describe<A>() + "," + detail::describe<B>() + ")"; }
};
template <class... T>
struct Codec<std::tuple<T...>> {
  static void write(Writer& to, const std::tuple<T...>& value) {
    std::apply([&](const auto&... one) { (detail::write(to, one), ...); }, value);
  }
  static std::tuple<T...> read(Reader& from) { return std::tuple<T...>{detail::read<T>(from)...}; }
  static std::string describe() {
    std::string all;
    ((all += (all.empty() ? "" : ",") + detail::describe<T>()), ...);
    return "(" + all + ")";
  }
};
template <class T, size_t N>
struct Codec<std::array<T, N>> {
  static void write(Writer& to, const std::array<T, N>& values) {
    for (const T& value : values) detail::write(to, value);
  }
  static std::array<T, N> read(Reader& from) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::array<T, N>{((void)I, detail::read<T>(from))...};
    }(std::make_index_sequence<N>());
  }
  static std::string describe() { return "array<" + detail::describe<T>() + "," + std::to_string(N) + ">"; }
};
template <class T>
struct Codec<std::vector<T>> : detail::SequenceCodec<std::vector<T>> {
  static std::string describe() { return "list<" + detail::describe<T>() + ">"; }
};
template <class T>
struct Codec<std::set<T>> : detail::SequenceCodec<std::set<T>> {
  static std::string describe() { return "set<" + detail::describe<T>() + ">"; }
};
template <class T>
struct Codec<std::unordered_set<T>> : detail::SequenceCodec<std::unordered_set<T>> {
  static std::string describe() { return "set<" + detail::describe<T>() + ">"; }
};
template <class K, class V>
struct Codec<std::map<K, V>> : detail::MapCodec<std::map<K, V>> {};
template <class K, class V>
struct Codec<std::unordered_map<K, V>> : detail::MapCodec<std::unordered_map<K, V>> {};
template <class... T>
struct Codec<std::variant<T...>> {
  using V = std::variant<T...>;
  static void write(Writer& to, const V& value) {
    to.number(static_cast<uint32_t>(value.index()));
    std::visit([&](const auto& one) { detail::write(to, one); }, value);
  }
  static V read(Reader& from) {
    const Reader::Level level(from);
    const auto index = from.number<uint32_t>();
    if (index >= sizeof...(T)) from.fail("chooses an alternative that a variant does not have");
    return read_at<0>(from, index);
  }
  static std::string describe() {
    std::string all;
    ((all += (all.empty() ? "" : "|") + detail::describe<T>()), ...);
    return "variant<" + all + ">";
  }

 private:
  template <size_t I>
  static V read_at(Reader& from, size_t index) {
    if constexpr (I + 1 < sizeof...(T)) {
      if (index != I) return read_at<I + 1>(from, index);
    }
    return V(std::in_place_index<I>, detail::read<std::variant_alternative_t<I, V>>(from));
  }
};

}  // namespace hasten::rpc
