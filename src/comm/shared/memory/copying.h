// Copying: memcpy, and a copy that goes past the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hasten::comm::shared {

/// Upper limit of the caches near a core.
constexpr int64_t kCachedBytes = int64_t{4} << 20;

/// Block size of a copy after a computation. The block and its sources still lie in the nearest cache then, of 32 KB as
/// a rule.
constexpr int64_t kBlockBytes = int64_t{8} << 10;

/// memcpy, which must not be given null even for nothing.
inline void copy_bytes(void* to, const void* from, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(to, from, static_cast<size_t>(num_bytes));
}

#if defined(__SSE2__)
/// Whole lines to memory whose address is a multiple of a line (non-temporal stores), and to `also` as
/// memcpy does.
template <bool kAlso>
void stream_lines(std::byte* to, const std::byte* from, int64_t num_bytes, std::byte* also) {
  for (int64_t offset = 0; offset < num_bytes; offset += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from + offset);
    auto* target = reinterpret_cast<__m128i*>(to + offset);
    for (int i = 0; i < 4; ++i) {
      const __m128i part = _mm_loadu_si128(source + i);
      if constexpr (kAlso) _mm_storeu_si128(reinterpret_cast<__m128i*>(also + offset) + i, part);
      _mm_stream_si128(target + i, part);
    }
  }
  _mm_sfence();  // later writes may announce this data
}
#endif

/// Copies past the caches where this machine can: the memory is not read first, and what is in the caches
/// stays there. Goes to `also` as well, through the caches, unless that is null.
inline void copy_past_caches(std::byte* to, const std::byte* from, int64_t num_bytes, std::byte* also = nullptr) {
  int64_t before = 0, lines = 0;
#if defined(__SSE2__)
  constexpr int64_t kLine = 64;
  if (num_bytes >= 2 * kLine) {
    before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLine);
    lines = (num_bytes - before) / kLine * kLine;
    if (also == nullptr) {
      stream_lines<false>(to + before, from + before, lines, nullptr);
    } else {
      stream_lines<true>(to + before, from + before, lines, also + before);
    }
  }
#endif
  const int64_t behind = before + lines;
  for (std::byte* target : {to, also}) {
    if (target == nullptr) continue;
    copy_bytes(target, from, before);
    copy_bytes(target + behind, from + behind, num_bytes - behind);
  }
}

/// Copies a part of a result of `total_bytes` to its place, and to `also` unless that is null. A result that
/// the caches near a core do not hold anyway is written past them.
inline void copy_out(void* to, const void* from, int64_t num_bytes, int64_t total_bytes, std::byte* also = nullptr) {
  if (total_bytes > kCachedBytes) {
    return copy_past_caches(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), num_bytes, also);
  }
  if (also != nullptr) copy_bytes(also, from, num_bytes);
  copy_bytes(to, from, num_bytes);
}

}  // namespace hasten::comm::shared
