// Short names, for launch and comm, of the bytes of keys, nonces and message hashes. The hashes are core/hash.h's.
#pragma once

#include <string>

#include "hasten/core/hash.h"

namespace hasten {

/// Bytes of a key, a nonce or a hash.
using Bytes = std::string;

constexpr size_t kHashBytes = 32;

inline Bytes hmac(const Bytes& key, std::string_view message) {
  return core::hmac_sha256(key, message);
}
inline bool same_hash(std::string_view one, std::string_view other) {
  return core::equal_in_constant_time(one, other);
}
inline Bytes random_bytes() {
  return core::random_bytes(kHashBytes);
}
inline std::string hex(std::string_view bytes) {
  return core::hex_digits(bytes);
}

}  // namespace hasten
