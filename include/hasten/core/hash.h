// Hashes: SHA-256, SHA-1 and HMAC-SHA256 by libcrypto, and XXH3-128.
//
// SHA-256 and SHA-1 identify contents as Git and the Hugging Face hub name them. XXH3-128 guards checkpoints against
// damage, at the speed of memory; it proves nothing about an attacker.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hasten::core {

/// A SHA-1 or SHA-256 over parts given one after the other.
class Digest {
 public:
  enum class Kind { kSha1, kSha256 };
  /// Throws: InternalError if libcrypto refuses the kind.
  explicit Digest(Kind kind);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void update(std::string_view bytes);
  /// Returns the digest in lower-case hexadecimal digits. No further part may follow.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view bytes);
std::string sha1_hex(std::string_view bytes);

/// Returns the 32 bytes of HMAC-SHA256 (RFC 2104). Throws: InternalError if libcrypto refuses.
std::string hmac_sha256(std::string_view key, std::string_view message);
/// Returns true for equal texts, in a time that does not depend on where they differ.
bool equal_in_constant_time(std::string_view one, std::string_view other);
/// Returns `count` bytes from the system's random source. Throws: InternalError if it has none.
std::string random_bytes(size_t count);

/// Returns lower-case hexadecimal digits.
std::string hex_digits(std::string_view bytes);

/// A 128-bit XXH3 hash, which compares by value.
struct Xxh128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Xxh128&) const = default;
  /// Returns 32 hexadecimal digits, the canonical order of `xxh128sum`.
  std::string hex() const;
  /// Reads 32 hexadecimal digits; returns false if the text is something else.
  static bool parse(std::string_view text, Xxh128& value);
};

/// Hashes a piece of memory at once.
Xxh128 xxh3_128(const void* bytes, size_t size);
inline Xxh128 xxh3_128(std::string_view bytes) {
  return xxh3_128(bytes.data(), bytes.size());
}

/// An XXH3-128 over parts given one after the other; equal to that of the whole.
class Xxh128Stream {
 public:
  Xxh128Stream();
  ~Xxh128Stream();
  Xxh128Stream(Xxh128Stream&&) noexcept;
  Xxh128Stream& operator=(Xxh128Stream&&) noexcept;
  void update(const void* bytes, size_t size);
  Xxh128 value() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hasten::core
