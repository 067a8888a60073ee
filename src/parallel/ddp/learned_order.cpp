// The order in which gradients arrive. A Reducer learns it in its first step. The one that is made anew when the ranks
// have met again takes it over. See reducer.h.
#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "parallel/ddp/reducer.h"
#include "parallel/parameters/parameter_sync.h"

namespace hasten::parallel {

void Reducer::learn_order(const std::vector<size_t>& unused) {
  std::vector<bool> listed(parameters_.names.size());
  for (const size_t i : arrived_) listed[i] = true;
  for (size_t i = parameters_.names.size(); i-- > 0;) {
    if (!listed[i]) arrived_.push_back(i);
  }
  at::Tensor order = torch::tensor(std::vector<int64_t>(arrived_.begin(), arrived_.end()), at::kLong);
  broadcast_tensors({order}, group_);
  const auto leave_out = [&](int64_t i) {
    return parameters_.sparse[i] ||
           (options_.static_graph && std::find(unused.begin(), unused.end(), i) != unused.end());
  };
  next_order_.emplace();
  for (const int64_t i : std::vector<int64_t>(order.data_ptr<int64_t>(), order.data_ptr<int64_t>() + order.numel())) {
    if (!leave_out(i)) next_order_->push_back(static_cast<size_t>(i));
  }
  has_learned_ = true;
}

LearnedOrder Reducer::learned_order() const {
  if (!has_learned_) return {};
  LearnedOrder learned{num_steps_, {}};
  if (next_order_) {
    learned.parameters = *next_order_;
  } else {
    for (const auto& members : plan_) {
      learned.parameters.insert(learned.parameters.end(), members.begin(), members.end());
    }
  }
  return learned;
}

void Reducer::set_order(LearnedOrder order) {
  if (order.num_steps == 0) return;
  num_steps_ = order.num_steps;
  next_order_ = std::move(order.parameters);
  has_learned_ = true;
}

}  // namespace hasten::parallel
