// The stack of active loaders; see gradient_state.h.
#include "hasten/state/gradient_state.h"

#include <algorithm>

namespace hasten::state {

void GradientState::enter(const LoaderPosition* loader) {
  leave(loader);
  active_.push_back(loader);
}

void GradientState::leave(const LoaderPosition* loader) noexcept {
  active_.erase(std::remove(active_.begin(), active_.end(), loader), active_.end());
}

void GradientState::set_step_was_skipped(const torch::optim::Optimizer& optimizer, bool skipped) {
  if (skipped) {
    skipped_.insert(&optimizer);
  } else {
    ++num_steps_;
    skipped_.erase(&optimizer);
  }
}

}  // namespace hasten::state
