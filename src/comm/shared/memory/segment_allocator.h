// Heap: which parts of a rank's share of the segment are tensors.
//
// First fit over a list of free parts, whose neighbours are joined again. Thread-safe; it works on offsets only.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

namespace hasten::comm::shared {

class SegmentAllocator {
 public:
  explicit SegmentAllocator(size_t num_bytes) {
    if (num_bytes > 0) free_[0] = num_bytes;
  }

  /// Returns the offset of `num_bytes` free bytes (a multiple of 64), nothing if there are none.
  std::optional<size_t> take(size_t num_bytes);
  /// Gives back what take(num_bytes) gave.
  void give(size_t offset, size_t num_bytes);

 private:
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> size
};

}  // namespace hasten::comm::shared
