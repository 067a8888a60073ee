// See step_policy.h.
#include "hasten/training/step_policy.h"

#include <algorithm>
#include <utility>

namespace hasten::training {

void StepPolicies::add(StepOrder order, std::shared_ptr<StepPolicy> policy, const torch::optim::Optimizer* only) {
  const auto behind = std::upper_bound(entries_.begin(), entries_.end(), order,
                                       [](StepOrder value, const Entry& entry) { return value < entry.order; });
  entries_.insert(behind, Entry{order, std::move(policy), only});
}

void StepPolicies::remove(const StepPolicy* policy) {
  std::erase_if(entries_, [policy](const Entry& entry) { return entry.policy.get() == policy; });
}

std::vector<std::shared_ptr<StepPolicy>> StepPolicies::of(const torch::optim::Optimizer& optimizer) const {
  std::vector<std::shared_ptr<StepPolicy>> result;
  for (const auto& entry : entries_) {
    if (entry.only == nullptr || entry.only == &optimizer) result.push_back(entry.policy);
  }
  return result;
}

}  // namespace hasten::training
