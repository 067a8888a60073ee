// See prepared_optimizers.h.
#include "hasten/training/prepared_optimizers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace hasten::training {

void PreparedOptimizers::note_step(const torch::optim::Optimizer& optimizer, bool skipped) {
  if (!skipped) ++num_calls_;
  for (Entry& known : entries_) {
    if (known.optimizer != &optimizer) continue;
    known.skipped = skipped;
    known.num_settled = num_held_backwards_;
    known.put_off = nullptr;
  }
}

std::shared_ptr<const void> PreparedOptimizers::add(const torch::optim::Optimizer& optimizer) {
  std::erase_if(entries_, [](const Entry& known) { return known.handles.expired(); });
  const Entry* before = find(optimizer);
  Entry entry{&optimizer, {}, before && before->skipped, before ? before->num_settled : num_held_backwards_};
  auto handles = std::make_shared<std::byte>();
  entry.handles = handles;
  entries_.push_back(std::move(entry));
  return handles;
}

void PreparedOptimizers::begin_batch() {
  has_backward_ = false;
  for (Entry& known : entries_) {
    if (known.handles.expired() || !known.put_off) continue;
    known.num_settled = num_held_backwards_;
    ++num_calls_;
    std::exchange(known.put_off, nullptr)();
  }
}

void PreparedOptimizers::note_backward(bool held) {
  has_backward_ = true;
  if (held) ++num_held_backwards_;
  for (Entry& known : entries_) known.put_off = nullptr;
}

void PreparedOptimizers::zero_grad(const torch::optim::Optimizer& optimizer, bool ends_window,
                                   std::function<void()> zero) {
  Entry* known = find(optimizer);
  if (known != nullptr && known->num_settled != num_held_backwards_) {
    if (!ends_window) return;
    if (!has_backward_) {
      known->put_off = std::move(zero);
      return;
    }
    known->num_settled = num_held_backwards_;
  }
  ++num_calls_;
  zero();
}

PreparedOptimizers::Entry* PreparedOptimizers::find(const torch::optim::Optimizer& optimizer) noexcept {
  return const_cast<Entry*>(std::as_const(*this).find(optimizer));
}

const PreparedOptimizers::Entry* PreparedOptimizers::find(const torch::optim::Optimizer& optimizer) const noexcept {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& known) {
    return known.optimizer == &optimizer && !known.handles.expired();
  });
  return found == entries_.end() ? nullptr : &*found;
}

bool PreparedOptimizers::any_step_was_skipped() const noexcept {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& known) { return known.skipped && !known.handles.expired(); });
}

}  // namespace hasten::training
