// See accelerator_base.h.
#include "hasten/accelerator_base.h"

namespace hasten {

AcceleratorBase::AcceleratorBase(state::Process process)
    : shared_(std::make_shared<Shared>(Shared{process, process.group().with_check(true)})) {}

void AcceleratorBase::set_trigger() const noexcept {
  shared_->triggered = true;
}

bool AcceleratorBase::check_trigger() const {
  const auto mine = at::scalar_tensor(shared_->triggered ? 1 : 0, at::kInt);
  const bool any = reduce(mine).item<int>() > 0;
  if (any) shared_->triggered = false;
  return any;
}

bool AcceleratorBase::should_stop() const {
  if (is_joining()) announce("should_stop");
  return ask_to_stop();
}

bool AcceleratorBase::ask_to_stop() const {
  if (!shared_->stop_signals) shared_->stop_signals = std::make_unique<state::StopSignals>();
  return shared_->stop_signals->should_stop(group());
}

std::vector<at::Tensor> AcceleratorBase::join_call(const parallel::JointCall& call,
                                                   const std::vector<at::Tensor>& tensors) const {
  const auto description = parallel::describe(call, tensors);
  return parallel::carry_out(description, tensors, announce(description), group());
}

void AcceleratorBase::answer(const nlohmann::json& call, const parallel::ActiveRanks& active) const {
  if (call == "barrier") {
    process().wait_for_everyone();
  } else if (call == "should_stop") {
    ask_to_stop();
  } else if (call == "objects") {
    comm::gather_object(group(), nlohmann::json(nlohmann::json::array()));
  } else {
    parallel::carry_out(call, parallel::neutral_tensors(call, device()), active, group());
  }
}

}  // namespace hasten
