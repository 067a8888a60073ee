// See crc32c.h.
#include "tracking/sinks/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace hasten::tracking {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0x82F63B78U ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(std::string_view bytes) noexcept {
  uint64_t c = ~0U;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    c = _mm_crc32_u64(c, word);
  }
  for (; left > 0; --left, ++at) c = _mm_crc32_u8(static_cast<uint32_t>(c), static_cast<uint8_t>(*at));
  return ~static_cast<uint32_t>(c);
}
#endif

}  // namespace

uint32_t detail::crc32c_by_table(std::string_view bytes) noexcept {
  uint32_t c = ~0U;
  for (const char byte : bytes) c = kTable[(c ^ static_cast<uint8_t>(byte)) & 255] ^ (c >> 8);
  return ~c;
}

uint32_t crc32c(std::string_view bytes) noexcept {
#if defined(__x86_64__)
  static const bool kHasInstruction = __builtin_cpu_supports("sse4.2") != 0;
  if (kHasInstruction) return crc32c_by_instruction(bytes);
#endif
  return detail::crc32c_by_table(bytes);
}

uint32_t masked_crc32c(std::string_view bytes) noexcept {
  const uint32_t c = crc32c(bytes);
  return ((c >> 15) | (c << 17)) + 0xa282ead8U;
}

}  // namespace hasten::tracking
