// GrowingTable: elements that never move, read without a lock while another thread adds some.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <mutex>

namespace hasten::rpc {

template <class T>
class GrowingTable {
 public:
  explicit GrowingTable(size_t size) { grow_to(size); }
  ~GrowingTable() {
    for (auto& chunk : chunks_) delete[] chunk.load();
  }
  GrowingTable(const GrowingTable&) = delete;
  GrowingTable& operator=(const GrowingTable&) = delete;

  size_t size() const noexcept { return size_.load(std::memory_order_acquire); }
  T& operator[](size_t i) const {
    const auto [chunk, offset] = place_of(i);
    return chunks_[chunk].load(std::memory_order_acquire)[offset];
  }
  /// Makes all elements below `size` exist; other threads may use them once size() includes them.
  void grow_to(size_t size) {
    const std::lock_guard lock(growing_);
    if (size <= size_.load()) return;
    for (size_t chunk = 0; chunk <= place_of(size - 1).chunk; ++chunk) {
      if (chunks_[chunk].load() == nullptr) chunks_[chunk].store(new T[size_t{1} << chunk], std::memory_order_release);
    }
    size_.store(size, std::memory_order_release);
  }

 private:
  struct Place {
    size_t chunk, offset;
  };
  // Chunk k holds the 2^k elements from number 2^k - 1 on.
  static Place place_of(size_t i) {
    const auto chunk = static_cast<size_t>(std::bit_width(i + 1)) - 1;
    return {chunk, i + 1 - (size_t{1} << chunk)};
  }

  std::mutex growing_;
  std::atomic<size_t> size_ = 0;
  std::array<std::atomic<T*>, 24> chunks_{};
};

}  // namespace hasten::rpc
