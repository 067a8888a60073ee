// Collectives on objects: numbers, texts, core::Value, vectors, maps, pairs and optionals of them (object_codec.h), and
// with json_objects.h every type that nlohmann::json converts.
//
// Objects travel as CBOR (RFC 8949) in uint8 tensors. The form is compact, and exact for doubles with NaN and
// infinities. Unlike Python's pickle, it runs no code when it is read. A rank that cannot encode its object sends the
// reason instead, so that every rank throws rather than waits. For tensors see nested_operations.h.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/nested/object_codec.h"

namespace hasten::comm {

/// Types whose objects can travel: default-constructible, with an ObjectCodec. A type of the program's own needs
/// to_json and from_json, and `#include <hasten/comm/nested/json_objects.h>`.
template <class T>
concept Serialisable = std::default_initializable<T> && requires(const T& value) { ObjectCodec<T>::encode(value); };

namespace detail {

using Bytes = std::vector<uint8_t>;

/// The object's bytes, or the reason why there are none.
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

Parcel pack(const std::function<Bytes()>& encode) noexcept;
/// Returns the object's bytes in a message. Throws: CommError if there is none.
std::span<const uint8_t> unpack(const Bytes& message, const Reading& reading);
Bytes to_cbor(const core::Value& value);
core::Value from_cbor(std::span<const uint8_t> bytes);
[[noreturn]] void refuse(const Reading& reading, const std::string& reason);

std::vector<Bytes> gather_bytes(const Group& group, const Parcel& mine, const Group::Site& site);
Bytes broadcast_bytes(const Group& group, const Parcel& mine, int from, const Group::Site& site);
Bytes scatter_bytes(const Group& group, const std::vector<Parcel>& parts, int from, const Group::Site& site);
void send_bytes(const Group& group, const Parcel& mine, int to, int tag, const Group::Site& site);
Bytes receive_bytes(const Group& group, int from, int tag, const Group::Site& site);

template <Serialisable T>
Parcel encode(const T& object) {
  return pack([&]() -> Bytes {
    if constexpr (ValueObject<T>) {
      return to_cbor(ObjectCodec<T>::encode(object));
    } else {
      return ObjectCodec<T>::encode(object);
    }
  });
}

template <Serialisable T>
T decode(const Bytes& bytes, const Reading& reading) {
  const std::span<const uint8_t> object = unpack(bytes, reading);
  try {
    if constexpr (ValueObject<T>) {
      return ObjectCodec<T>::decode(from_cbor(object));
    } else {
      return ObjectCodec<T>::decode(object);
    }
  } catch (const std::exception& error) {
    refuse(reading, error.what());
  }
}

}  // namespace detail

/// Returns every rank's object, by rank, on every rank.
/// Collective: yes. Blocks: yes. Throws: CommError if an object could not be encoded or read, or a peer failed.
template <Serialisable T>
std::vector<T> gather_object(const Group& group, const T& object, Group::Site site = Group::Site::current()) {
  std::vector<T> objects;
  for (const auto& bytes : detail::gather_bytes(group, detail::encode(object), site)) {
    objects.push_back(detail::decode<T>(bytes, {group, "gather_object", static_cast<int>(objects.size())}));
  }
  return objects;
}

/// Returns the object of rank `from`; the others' is not read and may be T().
/// Collective: yes. Blocks: yes. Throws: UsageError for a rank outside the group, CommError as gather_object.
template <Serialisable T>
T broadcast_object(const Group& group, const T& object, int from = 0, Group::Site site = Group::Site::current()) {
  const auto mine = group.rank() == from ? detail::encode(object) : detail::Parcel{};
  return detail::decode<T>(detail::broadcast_bytes(group, mine, from, site), {group, "broadcast_object", from});
}

/// Returns the list of rank `from`, whatever the length of the others' (Python's, which writes into its argument, needs
/// equal lengths).
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
/// Blocks: until it is passed on. Throws: CommError.
template <Serialisable T>
void send_object(const Group& group, const T& object, int to, int tag = 0, Group::Site site = Group::Site::current()) {
  detail::send_bytes(group, detail::encode(object), to, tag, site);
}

/// Blocks: until the object has come. Throws: CommError as gather_object.
template <Serialisable T>
T receive_object(const Group& group, int from, int tag = 0, Group::Site site = Group::Site::current()) {
  return detail::decode<T>(detail::receive_bytes(group, from, tag, site), {group, "receive_object", from});
}

}  // namespace hasten::comm
