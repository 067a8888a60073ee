// Copying: memcpy, and a copy that goes past the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hasten::comm::shared {

/// What the caches near a core hold at most.
constexpr int64_t kCachedBytes = int64_t{4} << 20;

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
  _mm_sfence();  // what is written next may say that this is there
}
#endif

/// Copies to memory whose address is a multiple of a line; past the caches where this machine can.
inline void copy_past_caches(std::byte* to, const std::byte* from, int64_t num_bytes) {
  int64_t lines = 0;
#if defined(__SSE2__)
  lines = num_bytes / 64 * 64;
  stream_lines<false>(to, from, lines, nullptr);
#endif
  copy_bytes(to + lines, from + lines, num_bytes - lines);
}

/// Copies a part of a result of `total_bytes` to its place. A result that the caches near a core do not hold
/// anyway is written past them: its memory is not read first, and what the others still need stays in the
/// caches. What is read goes to `also` as well, unless that is null.
inline void copy_out(void* to, const void* from, int64_t num_bytes, [[maybe_unused]] int64_t total_bytes,
                     std::byte* also = nullptr) {
#if defined(__SSE2__)
  constexpr int64_t kLine = 64;
  if (total_bytes > kCachedBytes && num_bytes >= 2 * kLine) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(out) % kLine);
    const int64_t lines = (num_bytes - before) / kLine * kLine, behind = before + lines;
    copy_bytes(out, in, before);
    copy_bytes(out + behind, in + behind, num_bytes - behind);
    if (also == nullptr) return stream_lines<false>(out + before, in + before, lines, nullptr);
    copy_bytes(also, in, before);
    copy_bytes(also + behind, in + behind, num_bytes - behind);
    return stream_lines<true>(out + before, in + before, lines, also + before);
  }
#endif
  if (also != nullptr) copy_bytes(also, from, num_bytes);
  copy_bytes(to, from, num_bytes);
}

}  // namespace hasten::comm::shared
