// See torch_scheduler.h.
#include "hasten/optim/schedulers/torch_scheduler.h"

#include <nlohmann/json.hpp>

#include "hasten/core/error.h"

namespace hasten::optim {
namespace {

// The count of steps is protected in libtorch.
struct StepCount : torch::optim::LRScheduler {
  using torch::optim::LRScheduler::LRScheduler;
  static unsigned& of(torch::optim::LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
};

}  // namespace

std::vector<double> TorchScheduler::rates() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

nlohmann::json TorchScheduler::state() const {
  return {{"step_count", StepCount::of(*scheduler_)}, {"rates", rates()}};
}

void TorchScheduler::load_state(const nlohmann::json& state) {
  const auto rates = state.at("rates").get<std::vector<double>>();
  auto& groups = optimizer_->param_groups();
  if (rates.size() != groups.size()) {
    throw UsageError(Origin{"optim"}, "the scheduler's state has ", rates.size(), " rates for an optimizer with ", groups.size(),
                     " parameter groups. Load it for the optimizer that it was taken of.");
  }
  StepCount::of(*scheduler_) = state.at("step_count").get<unsigned>();
  for (size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
}

}  // namespace hasten::optim
