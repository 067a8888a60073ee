// ReceiveBuffers: memory of large tensors that arrive, used again by later ones.
//
// Fresh memory costs a fault and a zeroed page for each 4 KB, about as much as copying the elements into it. So blocks
// of tensors that have ended are kept for the next of about their size, kMostKeptBytes at most. The kernel may take
// their pages back when memory is short (MADV_FREE).
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <list>
#include <mutex>

namespace hasten::rpc {

class ReceiveBuffers final : public c10::Allocator {
 public:
  static constexpr size_t kSmallestBytes = size_t{1} << 20;
  static constexpr size_t kMostKeptBytes = size_t{256} << 20;

  /// The allocator of this process. It is never destroyed: tensors may end at the very end.
  static ReceiveBuffers& get();
  /// Smaller pieces than kSmallestBytes come from libtorch's allocator. Throws: std::bad_alloc.
  c10::DataPtr allocate(size_t num_bytes) override;
  void copy_data(void* to, const void* from, size_t num_bytes) const override;
  /// Returns how many bytes wait for their next use.
  size_t kept_bytes() const;

 private:
  struct Block {
    void* memory = nullptr;
    size_t num_bytes = 0;
  };
  static void give_back(void* block);
  void keep(const Block& block);

  mutable std::mutex mutex_;
  std::list<Block> kept_;  // the latest first
  size_t kept_bytes_ = 0;
};

}  // namespace hasten::rpc
