// Collectives on objects that serialise: numbers, strings, vectors and maps of them, nlohmann::json, and
// every type that nlohmann::json converts (to_json and from_json of one's own among them).
//
// Objects travel as CBOR (RFC 8949) in uint8 tensors: compact, exact for doubles with NaN and infinities,
// and no code runs when one is read, unlike Python's pickle. A rank that cannot encode its object sends its
// words instead, so that every rank throws rather than waits. For tensors see nested_operations.h.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::comm {

/// Whether objects of this type can travel: default-constructible, and nlohmann::json converts both ways.
template <class T>
concept Serialisable = std::default_initializable<T> && requires(const T& value, const nlohmann::json& json) {
  nlohmann::json(value);
  json.template get<T>();
};

namespace detail {

using Bytes = std::vector<uint8_t>;

/// What travels: the object's bytes, or why there are none.
struct Parcel {
  Bytes bytes;
  std::string error;
};

/// The reading rank and its call, for messages.
struct Reading {
  const Group& group;
  const char* operation;
  int from;
};

Parcel pack(const std::function<nlohmann::json()>& encode) noexcept;
nlohmann::json unpack(const Bytes& bytes, const Reading& reading);
[[noreturn]] void refuse(const Reading& reading, const std::string& reason);

std::vector<Bytes> gather_bytes(const Group& group, const Parcel& mine, const Group::Site& site);
Bytes broadcast_bytes(const Group& group, const Parcel& mine, int from, const Group::Site& site);
Bytes scatter_bytes(const Group& group, const std::vector<Parcel>& parts, int from, const Group::Site& site);
void send_bytes(const Group& group, const Parcel& mine, int to, int tag, const Group::Site& site);
Bytes receive_bytes(const Group& group, int from, int tag, const Group::Site& site);

template <Serialisable T>
Parcel encode(const T& object) {
  return pack([&] { return nlohmann::json(object); });
}

template <Serialisable T>
T decode(const Bytes& bytes, const Reading& reading) {
  const nlohmann::json json = unpack(bytes, reading);
  try {
    return json.get<T>();
  } catch (const std::exception& error) {
    refuse(reading, error.what());
  }
}

}  // namespace detail

/// Every rank's object, by rank, on every rank.
/// Collective: yes. Blocks: yes. Throws: CommError if an object could not be encoded or read, or a peer
/// failed.
template <Serialisable T>
std::vector<T> gather_object(const Group& group, const T& object, Group::Site site = Group::Site::current()) {
  std::vector<T> objects;
  for (const auto& bytes : detail::gather_bytes(group, detail::encode(object), site)) {
    objects.push_back(detail::decode<T>(bytes, {group, "gather_object", static_cast<int>(objects.size())}));
  }
  return objects;
}

/// The object of rank `from`; the others' is not read and may be T().
/// Collective: yes. Blocks: yes. Throws: UsageError for a rank outside the group, CommError as
/// gather_object.
template <Serialisable T>
T broadcast_object(const Group& group, const T& object, int from = 0,
                   Group::Site site = Group::Site::current()) {
  const auto mine = group.rank() == from ? detail::encode(object) : detail::Parcel{};
  return detail::decode<T>(detail::broadcast_bytes(group, mine, from, site),
                           {group, "broadcast_object", from});
}

/// The list of rank `from`, whatever the length of the others' (Python's, which writes into the list handed
/// in, needs equal lengths).
/// Collective: yes. Blocks: yes. Throws: as broadcast_object.
template <Serialisable T>
std::vector<T> broadcast_object_list(const Group& group, const std::vector<T>& objects, int from = 0,
                                     Group::Site site = Group::Site::current()) {
  return broadcast_object(group, objects, from, site);
}

/// objects[r] of rank `from` on rank r; the others' list is not read.
/// Collective: yes. Blocks: yes. Throws: CommError on every rank if `from` has not one object for each
/// rank; otherwise as broadcast_object.
template <Serialisable T>
T scatter_object(const Group& group, const std::vector<T>& objects, int from = 0,
                 Group::Site site = Group::Site::current()) {
  std::vector<detail::Parcel> parts;
  if (group.rank() == from) {
    for (const T& object : objects) parts.push_back(detail::encode(object));
  }
  return detail::decode<T>(detail::scatter_bytes(group, parts, from, site), {group, "scatter_object", from});
}

/// Sends an object to one rank, which calls receive_object with the same type and tag.
/// Collective: no. Blocks: until it is handed over. Throws: CommError.
template <Serialisable T>
void send_object(const Group& group, const T& object, int to, int tag = 0,
                 Group::Site site = Group::Site::current()) {
  detail::send_bytes(group, detail::encode(object), to, tag, site);
}

/// Collective: no. Blocks: until the object has come. Throws: CommError as gather_object.
template <Serialisable T>
T receive_object(const Group& group, int from, int tag = 0, Group::Site site = Group::Site::current()) {
  return detail::decode<T>(detail::receive_bytes(group, from, tag, site), {group, "receive_object", from});
}

}  // namespace hasten::comm
