// See loader_stack.h.
#include "hasten/training/loader_stack.h"

#include <algorithm>

namespace hasten::training {

void LoaderStack::enter(const LoaderPosition* loader) {
  leave(loader);
  active_.push_back(loader);
}

void LoaderStack::leave(const LoaderPosition* loader) noexcept {
  active_.erase(std::remove(active_.begin(), active_.end(), loader), active_.end());
}

}  // namespace hasten::training
