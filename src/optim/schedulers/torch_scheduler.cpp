// See torch_scheduler.h.
#include "hasten/optim/schedulers/torch_scheduler.h"

#include "hasten/core/error.h"
#include "optim/schedulers/read_state.h"

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

core::Value TorchScheduler::state() const {
  return core::Value::map({{"step_count", StepCount::of(*scheduler_)}, {"rates", rates()}});
}

void TorchScheduler::load_state(const core::Value& state) {
  std::vector<double> rates;
  int64_t step_count = 0;
  detail::read_state("TorchScheduler", [&] {
    rates = detail::doubles_of(state.at("rates"));
    step_count = state.at("step_count").as_int();
  });
  auto& groups = optimizer_->param_groups();
  if (rates.size() != groups.size()) {
    throw UsageError(Origin{"optim"}, "the scheduler's state has ", rates.size(), " rates for an optimizer with ",
                     groups.size(), " parameter groups. Load it for the optimizer that it was taken of.");
  }
  StepCount::of(*scheduler_) = static_cast<unsigned>(step_count);
  for (size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
}

}  // namespace hasten::optim
