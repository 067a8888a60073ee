// SlotWriter: writes chunks through the caches or past them, whichever takes less time at present.
//
// Between cores that share a cache a reader finds the chunk there. Between cores that share none (chiplets, sockets) a
// writer that comes back to a slot takes each line back from the reader's caches. That can take several times as long
// as writing it to memory. The time of writing shows which case holds. It changes when the scheduler, or the host of a
// virtual machine, moves the ranks. So a sample of every few chunks is written in the other way.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "comm/shared/memory/copying.h"

namespace hasten::comm::shared {

template <class Clock = std::chrono::steady_clock>
class SlotWriter {
 public:
  /// For the chunks of a tensor of this size. A tensor that the caches hold is written through them.
  explicit SlotWriter(int64_t total_bytes) : chooses_(total_bytes > kCachedBytes) {}

  /// Has a chunk copied: calls copy(begin, size, past_caches) for one or two parts of it.
  template <class Copy>
  void write(int64_t num_bytes, const Copy& copy) {
    if (!chooses_) return copy(int64_t{0}, num_bytes, false);
    int64_t begin = 0;
    if (num_chunks_++ % kChunksPerSample == 0 && num_bytes > kSampleBytes) {
      begin = kSampleBytes;
      timed(!past_caches_, 0, begin, copy);
    }
    timed(past_caches_, begin, num_bytes - begin, copy);
    past_caches_ = time_of_byte_[true] * kWorthIt < time_of_byte_[false];
  }

  /// Copies a chunk to its slot.
  void copy(std::byte* to, const std::byte* from, int64_t num_bytes) {
    write(num_bytes, [&](int64_t begin, int64_t size, bool past_caches) {
      if (past_caches) return copy_past_caches(to + begin, from + begin, size);
      copy_bytes(to + begin, from + begin, size);
    });
  }

 private:
  static constexpr int64_t kSampleBytes = 8 << 10;
  static constexpr int64_t kChunksPerSample = 4;
  // Data written past the caches is read from memory, so it has to save more than a little.
  static constexpr double kWorthIt = 2;

  template <class Copy>
  void timed(bool past_caches, int64_t begin, int64_t size, const Copy& copy) {
    const auto start = Clock::now();
    copy(begin, size, past_caches);
    const std::chrono::duration<double> time = Clock::now() - start;
    time_of_byte_[past_caches] = time.count() / static_cast<double>(size);
  }

  const bool chooses_;
  int64_t num_chunks_ = 0;
  bool past_caches_ = false;
  /// The last measured time, in seconds; by whether past the caches.
  std::array<double, 2> time_of_byte_{};
};

}  // namespace hasten::comm::shared
