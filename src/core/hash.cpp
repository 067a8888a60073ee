// Hashes by OpenSSL's EVP interface and xxHash's inlined header; see hash.h.
#include "hasten/core/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <utility>

#include "hasten/core/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hasten::core {

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(Kind kind) : state_(std::make_unique<State>()) {
  const EVP_MD* type = kind == Kind::kSha1 ? EVP_sha1() : EVP_sha256();
  if (state_->context == nullptr || EVP_DigestInit_ex(state_->context, type, nullptr) != 1) {
    throw InternalError({"core"}, "libcrypto cannot compute ", kind == Kind::kSha1 ? "SHA-1." : "SHA-256.");
  }
}
Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::update(std::string_view bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
}

std::string Digest::hex() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(state_->context, bytes, &size);
  return hex_digits({reinterpret_cast<const char*>(bytes), size});
}

namespace {

std::string digest_of(Digest::Kind kind, std::string_view bytes) {
  Digest digest(kind);
  digest.update(bytes);
  return digest.hex();
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  return digest_of(Digest::Kind::kSha256, bytes);
}
std::string sha1_hex(std::string_view bytes) {
  return digest_of(Digest::Kind::kSha1, bytes);
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string hash(32, '\0');
  unsigned size = 0;
  const auto* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                          reinterpret_cast<unsigned char*>(hash.data()), &size);
  if (done == nullptr || size != hash.size()) throw InternalError({"core"}, "libcrypto cannot compute HMAC-SHA256.");
  return hash;
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw InternalError({"core"}, "the system gives no random bytes.");
  }
  return bytes;
}

std::string hex_digits(std::string_view bytes) {
  std::string digits;
  digits.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    digits += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    digits += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return digits;
}

std::string Xxh128::hex() const {
  std::string bytes;
  for (const uint64_t half : {high, low}) {
    for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(half >> shift);
  }
  return hex_digits(bytes);
}

bool Xxh128::parse(std::string_view text, Xxh128& value) {
  if (text.size() != 32) return false;
  uint64_t halves[2] = {0, 0};
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = std::string_view("0123456789abcdef").find(text[i]);
    if (digit == std::string_view::npos) return false;
    halves[i / 16] = halves[i / 16] << 4 | digit;
  }
  value = {.low = halves[1], .high = halves[0]};
  return true;
}

Xxh128 xxh3_128(const void* bytes, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  return {.low = hash.low64, .high = hash.high64};
}

struct Xxh128Stream::State {
  XXH3_state_t* hash = XXH3_createState();
  ~State() { XXH3_freeState(hash); }
};

Xxh128Stream::Xxh128Stream() : state_(std::make_unique<State>()) {
  if (state_->hash == nullptr) throw InternalError({"core"}, "no memory for a hash.");
  reset();
}
Xxh128Stream::~Xxh128Stream() = default;
Xxh128Stream::Xxh128Stream(Xxh128Stream&&) noexcept = default;
Xxh128Stream& Xxh128Stream::operator=(Xxh128Stream&&) noexcept = default;
void Xxh128Stream::reset() {
  XXH3_128bits_reset(state_->hash);
}
void Xxh128Stream::update(const void* bytes, size_t size) {
  XXH3_128bits_update(state_->hash, bytes, size);
}
Xxh128 Xxh128Stream::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->hash);
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace hasten::core
