// Values of calls that nlohmann::json converts: classes with to_json and from_json, and nlohmann::json itself.
//
// They travel as JSON text. Include it where functions with such parameters are added or called; other programs need no
// nlohmann::json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "hasten/rpc/values.h"

namespace hasten::rpc {

namespace detail {
/// Classes that only JSON can carry: no plain structs, and none with hasten_fields.
template <class T>
concept JsonValue = std::is_class_v<T> && !PlainStruct<T> && !HasFields<T> && requires(nlohmann::json& json, T& value) {
  json = value;
  json.template get<T>();
};
}  // namespace detail

template <class T>
  requires detail::JsonValue<T>
struct Codec<T> {
  static void write(Writer& to, const T& value) { to.string(nlohmann::json(value).dump()); }
  static T read(Reader& from) {
    try {
      return nlohmann::json::parse(from.string()).template get<T>();
    } catch (const nlohmann::json::exception& error) {
      from.fail(std::string("holds JSON that does not fit: ") + error.what());
    }
  }
  static std::string describe() { return "json<" + detail::type_name<T>() + ">"; }
};

}  // namespace hasten::rpc
