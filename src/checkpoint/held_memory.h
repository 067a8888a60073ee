// HeldMemory: page-aligned memory for snapshots, kept from save to save, since fresh pages cost more than the copy.
#pragma once

#include <cstddef>
#include <vector>

namespace hasten::checkpoint {

class HeldMemory {
 public:
  HeldMemory() = default;
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  /// One buffer of each size, each beginning at a page, rounded up to whole pages; the bytes are left as they were. Buffers
  /// of an earlier call end. Collective: no. Blocks: no. Throws: std::bad_alloc.
  std::vector<char*> buffers(const std::vector<size_t>& sizes);
  /// Takes memory of `bytes` and touches its pages, so that the first snapshot finds them.
  void prepare(size_t bytes);
  size_t capacity() const noexcept { return capacity_; }

 private:
  void grow(size_t bytes);
  char* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace hasten::checkpoint
