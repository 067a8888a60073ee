// See loader_stack.h.
#include "hasten/training/loader_stack.h"

#include <algorithm>
#include <utility>

namespace hasten::training {

void LoaderStack::enter(const LoaderPosition* loader) {
  leave(loader);
  active_.push_back(loader);
}

void LoaderStack::leave(const LoaderPosition* loader) noexcept {
  active_.erase(std::remove(active_.begin(), active_.end(), loader), active_.end());
  counts_ = {};
}

void LoaderStack::count(int64_t num_samples, std::chrono::nanoseconds waited) noexcept {
  ++counts_.num_batches;
  counts_.num_samples += num_samples;
  counts_.waited += waited;
}

LoaderCounts LoaderStack::take_counts() noexcept {
  return std::exchange(counts_, {});
}

}  // namespace hasten::training
