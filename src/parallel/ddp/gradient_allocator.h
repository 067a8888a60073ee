// GradientAllocator: gradients that autograd writes where they are going to stay.
//
// An operator's backward makes its gradient in memory from libtorch's CPU allocator. A data-parallel step would have to
// copy it from there into its bucket. So that allocator is wrapped, and returns the gradient's slot when its turn
// comes. Backward after backward makes the same allocations in the same order. The last one shows which of them became
// a parameter's gradient. A wrong prediction is safe. The slot stays in use until the other tensor is freed; if its
// gradient arrives first, the bucket is reallocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace hasten::parallel {

class GradientAllocator : public std::enable_shared_from_this<GradientAllocator> {
 public:
  /// Alignment of libtorch's allocator, in bytes.
  static constexpr int64_t kAlign = 64;

  /// For gradients of at least this many bytes. Nothing if another allocator than libtorch's own is in use.
  static std::shared_ptr<GradientAllocator> make(std::optional<int64_t> least_bytes);

  /// `slot` is where the gradient of `parameter` belongs. Returns its number.
  size_t add(const at::Tensor& parameter, const at::Tensor& slot);
  /// The slot lies elsewhere now, without a holder.
  void move(size_t place, const at::Tensor& slot);
  /// Another tensor over the same memory.
  void replace(size_t place, const at::Tensor& slot) { places_[place].slot = slot; }
  /// It is not handed out again.
  void disable(size_t place) { places_[place].trusted = false; }

  /// From now on this thread's allocations may be gradients, until close() or another's open().
  void open();
  void close();
  /// Takes autograd's tensor for the place in this backward, and records which allocation it was.
  void record(size_t place, const at::Tensor& gradient);
  int64_t least_bytes() const noexcept { return least_bytes_; }
  /// Returns true if another tensor holds the slot's memory as its own.
  bool is_in_use(size_t place) const { return *places_[place].in_use; }

 private:
  friend class BucketAllocator;
  struct Place {
    at::Tensor parameter, slot;
    /// Which allocation of its size it is, from 1; 0: not known.
    int allocation_index = 0;
    bool trusted = true;
    /// Outlives the place: memory may be freed when all else has gone, and by any thread.
    std::shared_ptr<std::atomic<bool>> in_use = std::make_shared<std::atomic<bool>>(false);
  };
  struct Allocation {
    size_t num_bytes;
    int allocation_index;
    const void* memory;
  };

  explicit GradientAllocator(int64_t least_bytes) : least_bytes_(least_bytes) {}
  /// Returns the place whose gradient this allocation will be; nullptr: none's.
  Place* next(size_t num_bytes);
  /// An allocation whose turn has just come was given this memory, which is no place's.
  void note(size_t num_bytes, const void* memory);

  const int64_t least_bytes_;
  std::vector<Place> places_;
  /// Allocations of the backward under way.
  std::map<size_t, int> num_allocations_;
  std::vector<Allocation> allocations_;
};

}  // namespace hasten::parallel
