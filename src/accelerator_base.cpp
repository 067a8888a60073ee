// See accelerator_base.h.
#include "hasten/accelerator_base.h"

namespace hasten {
namespace {

// Under which a search for a batch size announces itself.
constexpr const char* kAttempt = "find_executable_batch_size";

}  // namespace

AcceleratorBase::AcceleratorBase(process::Process process)
    : shared_(std::make_shared<Shared>(Shared{process, process.group().with_check(true)})) {}

void AcceleratorBase::set_trigger() const noexcept {
  shared_->triggered = true;
}

bool AcceleratorBase::check_trigger() const {
  if (is_joining()) announce("check_trigger");
  return ask_for_trigger();
}

bool AcceleratorBase::ask_for_trigger() const {
  const auto mine = at::scalar_tensor(shared_->triggered ? 1 : 0, at::kInt);
  const bool any = comm::reduce(group(), mine).item<int>() > 0;
  if (any) shared_->triggered = false;
  return any;
}

bool AcceleratorBase::should_stop() const {
  if (is_joining()) announce("should_stop");
  return ask_to_stop();
}

bool AcceleratorBase::ask_to_stop() const {
  if (!shared_->stop_signals) shared_->stop_signals = std::make_unique<process::StopSignals>();
  return shared_->stop_signals->should_stop(group());
}

Logger AcceleratorBase::logger(const std::string& name) const {
  const auto wait = [process = process(), weak = std::weak_ptr<const Shared>(shared_)] {
    const auto shared = weak.lock();
    if (shared && shared->join) shared->join->announce("barrier");
    process.wait_for_everyone();
  };
  return Logger(name, {rank(), world_size(), wait});
}

bool AcceleratorBase::goes_first() const {
  return is_joining() ? announce(kMainFirst).first() == rank() : is_main_process();
}

bool AcceleratorBase::goes_first_locally() const {
  return is_joining() ? is_first_of_machine(announce(kLocalMainFirst)) : is_local_main_process();
}

bool AcceleratorBase::is_first_of_machine(const parallel::ActiveRanks& active) const {
  const int mine = process().identity().node_rank;
  const auto machines = comm::gather_object(group(), mine);
  for (const int other : active.ranks) {
    if (machines[other] == mine) return other == rank();
  }
  return false;
}

void AcceleratorBase::announce_attempt(const memory::BatchSizeAttempt& attempt) const {
  if (!is_joining()) return;
  announce(nlohmann::json::object({{kAttempt, {attempt.start, attempt.batch_size}}}));
}

std::vector<at::Tensor> AcceleratorBase::join_call(const parallel::JointCall& call,
                                                   const std::vector<at::Tensor>& tensors) const {
  const auto description = parallel::describe(call, tensors);
  return parallel::carry_out(description, tensors, announce(description), group());
}

void AcceleratorBase::answer(const nlohmann::json& call, const parallel::ActiveRanks& active) const {
  if (call == "barrier") {
    process().wait_for_everyone();
  } else if (call == "check_trigger") {
    ask_for_trigger();
  } else if (call == "should_stop") {
    ask_to_stop();
  } else if (call == kMainFirst || call == kLocalMainFirst) {
    if (call == kLocalMainFirst) is_first_of_machine(active);
    process::detail::run_in_order(process(), false, call == kMainFirst ? kMainFirst : kLocalMainFirst, [] {});
  } else if (call.is_object() && call.contains(kAttempt)) {
    const auto [start, batch_size] = call.at(kAttempt).get<std::pair<int64_t, int64_t>>();
    memory::detail::agree_without_attempt(group(), {start, batch_size});
  } else if (call == "objects") {
    comm::gather_object(group(), nlohmann::json(nlohmann::json::array()));
  } else {
    parallel::carry_out(call, parallel::neutral_tensors(call, device()), active, group());
  }
}

}  // namespace hasten
