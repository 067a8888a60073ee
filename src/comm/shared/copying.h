// Copying: memcpy, and a copy that goes past the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hasten::comm::shared {

/// memcpy, which must not be given null even for nothing.
inline void copy_bytes(void* to, const void* from, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(to, from, static_cast<size_t>(num_bytes));
}

#if defined(__SSE2__)
/// Whole lines to memory whose address is a multiple of a line (non-temporal stores).
inline void stream_lines(std::byte* to, const std::byte* from, int64_t num_bytes) {
  for (const std::byte* end = from + num_bytes; from < end; from += 64, to += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
  }
  _mm_sfence();  // what is written next may say that this is there
}
#endif

/// Copies a part of a result of `total_bytes` out of the shared memory. A result that the caches near a core
/// do not hold anyway is written past them: its memory is not read first, and what the others still need
/// stays in the caches.
inline void copy_out(void* to, const void* from, int64_t num_bytes, [[maybe_unused]] int64_t total_bytes) {
#if defined(__SSE2__)
  constexpr int64_t kCachedBytes = int64_t{4} << 20, kLine = 64;
  if (total_bytes > kCachedBytes && num_bytes >= 2 * kLine) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(out) % kLine);
    const int64_t lines = (num_bytes - before) / kLine * kLine;
    copy_bytes(out, in, before);
    stream_lines(out + before, in + before, lines);
    return copy_bytes(out + before + lines, in + before + lines, num_bytes - before - lines);
  }
#endif
  copy_bytes(to, from, num_bytes);
}

}  // namespace hasten::comm::shared
