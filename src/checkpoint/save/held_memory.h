// HeldMemory: page-aligned memory for snapshots, reused from save to save, since fresh pages cost more than the copy.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace hasten::checkpoint {

class HeldMemory {
 public:
  HeldMemory() = default;
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  /// Makes a buffer of each size, each beginning at a page, rounded up to whole pages. The bytes are left as they were.
  /// Buffers of an earlier call end. `pinned`: memory that an accelerator copies to by itself.
  /// Throws: std::bad_alloc.
  std::vector<char*> buffers(const std::vector<size_t>& sizes, bool pinned = false);
  /// Takes memory of `bytes` and touches its pages in a thread of low priority, so that the first snapshot finds them.
  /// A call of buffers() ends the thread. Behind one nothing happens, since a writer may be reading the buffers.
  /// Throws: nothing; without memory nothing happens.
  /// `pinned`: pins them there, which takes longer than the copy.
  void prepare(size_t bytes, bool pinned = false) noexcept;
  /// Bytes whose pages prepare() has touched so far.
  size_t touched() const noexcept { return touched_; }
  size_t capacity() const noexcept { return capacity_; }

 private:
  void grow(size_t bytes);
  void pin(size_t bytes);
  bool register_pages();
  void unregister_pages() noexcept;
  void stop() noexcept;

  char* data_ = nullptr;
  size_t capacity_ = 0;
  bool is_in_use_ = false;  ///< buffers were made
  /// Its pages are known to CUDA as they are: nothing is rounded up, and growing keeps them.
  bool registered_ = false;
  /// Memory of the accelerator's own allocator, where pages cannot be registered.
  at::Tensor pinned_ = {};
  std::thread toucher_;
  std::atomic<bool> stopped_ = false;
  std::atomic<size_t> touched_ = 0;
};

}  // namespace hasten::checkpoint
