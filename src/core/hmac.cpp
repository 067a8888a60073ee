// HMAC by libcrypto's one-shot function; see hmac.h.
#include "hasten/core/hmac.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "hasten/core/error.h"

namespace hasten {

Bytes hmac(const Bytes& key, std::string_view message) {
  Bytes hash(kHashBytes, '\0');
  unsigned size = 0;
  const auto* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                          reinterpret_cast<unsigned char*>(hash.data()), &size);
  if (done == nullptr || size != kHashBytes)
    throw InternalError({"core"}, "libcrypto cannot compute HMAC-SHA256.");
  return hash;
}

bool same_hash(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Bytes random_bytes() {
  Bytes bytes(kHashBytes, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw InternalError({"core"}, "the system gives no random bytes.");
  return bytes;
}

std::string hex(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) {
    digits += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    digits += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return digits;
}

}  // namespace hasten
