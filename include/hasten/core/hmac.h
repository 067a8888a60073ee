// Keyed hashes, for proving a secret without telling it. OpenSSL's libcrypto does the work.
#pragma once

#include <string>
#include <string_view>

namespace hasten {

/// Bytes of a key, a nonce or a hash.
using Bytes = std::string;

constexpr size_t kHashBytes = 32;

/// HMAC-SHA256 (RFC 2104) of `message` under `key`: kHashBytes bytes. Throws: InternalError if libcrypto
/// refuses.
Bytes hmac(const Bytes& key, std::string_view message);

/// Whether two hashes are equal, in a time that does not tell where they differ.
bool same_hash(std::string_view one, std::string_view other);

/// kHashBytes bytes that nobody can guess. Throws: InternalError if the system has none.
Bytes random_bytes();

/// "0a1f…".
std::string hex(std::string_view bytes);

}  // namespace hasten
