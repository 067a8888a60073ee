// Every type that nlohmann::json converts, as an object of the collectives in objects.h: nlohmann::json itself, and
// types with to_json and from_json of their own. Include it before the first collective on such a type.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>

#include "hasten/comm/nested/objects.h"

namespace hasten::comm {

/// Arithmetic types, texts and containers of them have codecs of their own (object_codec.h).
template <class T>
  requires(!std::is_arithmetic_v<T> &&
           requires(const T& object, const nlohmann::json& json) {
             nlohmann::json(object);
             json.template get<T>();
           })
struct ObjectCodec<T> {
  static detail::Bytes encode(const T& object) { return nlohmann::json::to_cbor(nlohmann::json(object)); }
  static T decode(std::span<const uint8_t> cbor) {
    return nlohmann::json::from_cbor(cbor.begin(), cbor.end()).template get<T>();
  }
};

}  // namespace hasten::comm
