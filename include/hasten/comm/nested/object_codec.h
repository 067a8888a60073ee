// ObjectCodec: objects as core::Value and back, for the collectives of objects.h.
//
// Numbers, texts, core::Value, and vectors, maps, pairs and optionals of them convert here. json_objects.h adds every
// type that nlohmann::json converts. Only programs that include it compile the JSON library.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::comm {

/// Converts a type that travels: `static core::Value encode(const T&)` and `static T decode(const core::Value&)`, or to
/// CBOR bytes and back (json_objects.h).
template <class T>
struct ObjectCodec;

/// Types that convert to core::Value.
template <class T>
concept ValueObject = requires(const T& object, const core::Value& value) {
  { ObjectCodec<T>::encode(object) } -> std::same_as<core::Value>;
  { ObjectCodec<T>::decode(value) } -> std::same_as<T>;
};

template <>
struct ObjectCodec<core::Value> {
  static core::Value encode(const core::Value& value) { return value; }
  static core::Value decode(const core::Value& value) { return value; }
};

template <>
struct ObjectCodec<bool> {
  static core::Value encode(bool value) { return value; }
  static bool decode(const core::Value& value) { return value.as_bool(); }
};

template <std::integral T>
struct ObjectCodec<T> {
  static core::Value encode(T value) { return value; }
  static T decode(const core::Value& value) { return static_cast<T>(value.as_int()); }
};

template <std::floating_point T>
struct ObjectCodec<T> {
  static core::Value encode(T value) { return value; }
  static T decode(const core::Value& value) { return static_cast<T>(value.as_double()); }
};

template <>
struct ObjectCodec<std::string> {
  static core::Value encode(const std::string& value) { return value; }
  static std::string decode(const core::Value& value) { return value.as_string(); }
};

template <ValueObject T>
struct ObjectCodec<std::vector<T>> {
  static core::Value encode(const std::vector<T>& values) {
    core::Value::List list;
    list.reserve(values.size());
    for (const T& value : values) list.push_back(ObjectCodec<T>::encode(value));
    return list;
  }
  static std::vector<T> decode(const core::Value& value) {
    std::vector<T> values;
    values.reserve(value.size());
    for (const core::Value& one : value.as_list()) values.push_back(ObjectCodec<T>::decode(one));
    return values;
  }
};

template <ValueObject T>
struct ObjectCodec<std::optional<T>> {
  static core::Value encode(const std::optional<T>& value) {
    return value ? ObjectCodec<T>::encode(*value) : core::Value();
  }
  static std::optional<T> decode(const core::Value& value) {
    return value.is_null() ? std::nullopt : std::optional<T>(ObjectCodec<T>::decode(value));
  }
};

template <ValueObject A, ValueObject B>
struct ObjectCodec<std::pair<A, B>> {
  static core::Value encode(const std::pair<A, B>& pair) {
    return core::Value::list({ObjectCodec<A>::encode(pair.first), ObjectCodec<B>::encode(pair.second)});
  }
  static std::pair<A, B> decode(const core::Value& value) {
    const core::Value::List& list = value.as_list();
    return {ObjectCodec<A>::decode(list.at(0)), ObjectCodec<B>::decode(list.at(1))};
  }
};

namespace detail {

/// Maps with text as keys.
template <class Map>
struct MapCodec {
  using Mapped = typename Map::mapped_type;
  static core::Value encode(const Map& map) {
    core::Value::Map pairs;
    pairs.reserve(map.size());
    for (const auto& [key, value] : map) pairs.emplace_back(key, ObjectCodec<Mapped>::encode(value));
    return pairs;
  }
  static Map decode(const core::Value& value) {
    Map map;
    for (const auto& [key, one] : value.as_map()) map.emplace(key, ObjectCodec<Mapped>::decode(one));
    return map;
  }
};

}  // namespace detail

template <ValueObject T>
struct ObjectCodec<std::map<std::string, T>> : detail::MapCodec<std::map<std::string, T>> {};
template <ValueObject T>
struct ObjectCodec<std::unordered_map<std::string, T>> : detail::MapCodec<std::unordered_map<std::string, T>> {};

}  // namespace hasten::comm
