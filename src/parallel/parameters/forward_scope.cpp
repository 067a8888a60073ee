// See forward_scope.h.
#include "hasten/parallel/parameters/forward_scope.h"

#include <algorithm>
#include <utility>

namespace hasten::parallel {

ForwardScopes::Scope::~Scope() {
  while (!entered_.empty()) entered_.pop_back();
}

void ForwardScopes::add(ForwardOrder order, std::shared_ptr<ForwardHook> hook) {
  const auto behind = std::upper_bound(hooks_.begin(), hooks_.end(), order,
                                       [](ForwardOrder value, const Entry& entry) { return value < entry.order; });
  hooks_.insert(behind, Entry{order, std::move(hook)});
}

void ForwardScopes::remove(const ForwardHook* hook) {
  std::erase_if(hooks_, [hook](const Entry& entry) { return entry.hook.get() == hook; });
}

bool ForwardScopes::has(ForwardOrder order) const noexcept {
  return std::any_of(hooks_.begin(), hooks_.end(), [order](const Entry& entry) { return entry.order == order; });
}

ForwardScopes::Scope ForwardScopes::enter(torch::nn::Module& module) const {
  Scope scope;
  scope.entered_.reserve(hooks_.size());
  for (const auto& entry : hooks_) {
    if (auto entered = entry.hook->enter(module)) scope.entered_.push_back(std::move(entered));
  }
  return scope;
}

}  // namespace hasten::parallel
