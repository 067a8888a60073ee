// The stack of active loaders, and the optimizers that are known; see gradient_state.h.
#include "hasten/training/gradient_state.h"

#include <algorithm>
#include <cstddef>

namespace hasten::training {

void GradientState::enter(const LoaderPosition* loader) {
  leave(loader);
  active_.push_back(loader);
}

void GradientState::leave(const LoaderPosition* loader) noexcept {
  active_.erase(std::remove(active_.begin(), active_.end(), loader), active_.end());
}

void GradientState::set_step_was_skipped(const torch::optim::Optimizer& optimizer, bool skipped) {
  if (!skipped) ++num_optimizer_calls_;
  for (Prepared& known : prepared_) {
    if (known.optimizer == &optimizer) known.skipped = skipped;
  }
}

std::shared_ptr<const void> GradientState::set_prepared(const torch::optim::Optimizer& optimizer) {
  std::erase_if(prepared_, [](const Prepared& known) { return known.handles.expired(); });
  auto handles = std::make_shared<std::byte>();
  prepared_.push_back({&optimizer, handles, step_was_skipped(optimizer)});
  return handles;
}

const GradientState::Prepared* GradientState::find(const torch::optim::Optimizer& optimizer) const noexcept {
  const auto found = std::find_if(prepared_.begin(), prepared_.end(), [&](const Prepared& known) {
    return known.optimizer == &optimizer && !known.handles.expired();
  });
  return found == prepared_.end() ? nullptr : &*found;
}

bool GradientState::optimizer_step_was_skipped() const noexcept {
  return std::any_of(prepared_.begin(), prepared_.end(),
                     [](const Prepared& known) { return known.skipped && !known.handles.expired(); });
}

}  // namespace hasten::training
