// See operations.h.
#include "hasten/parallel/join/operations.h"

#include <utility>

namespace hasten::parallel {
namespace {

// Under which a search for a batch size announces itself.
constexpr const char* kAttempt = "find_executable_batch_size";

}  // namespace

Operations::Operations(process::Process process, std::shared_ptr<training::GradientState> gradients)
    : process_(std::move(process)), group_(process_.group().with_check(true)), gradients_(std::move(gradients)) {}

void Operations::wait_for_everyone() {
  notify("barrier");
  process_.wait_for_everyone();
}

bool Operations::check_trigger() {
  notify("check_trigger");
  return reduce_trigger();
}

bool Operations::reduce_trigger() {
  const auto mine = at::scalar_tensor(triggered_ ? 1 : 0, at::kInt);
  const bool any = comm::reduce(group(), mine).item<int>() > 0;
  if (any) triggered_ = false;
  return any;
}

bool Operations::should_stop() {
  notify("should_stop");
  return reduce_stop();
}

bool Operations::reduce_stop() {
  if (!stop_signals_) stop_signals_ = std::make_unique<process::StopSignals>();
  return stop_signals_->should_stop(group());
}

Logger Operations::logger(const std::string& name) {
  const auto wait = [process = process_, weak = weak_from_this()] {
    if (const auto own = weak.lock()) own->notify("barrier");
    process.wait_for_everyone();
  };
  return Logger(name, {process_.rank(), process_.world_size(), wait});
}

bool Operations::goes_first() {
  return is_joining() ? notify(kMainFirst).first() == process_.rank() : process_.is_main_process();
}

bool Operations::goes_first_locally() {
  return is_joining() ? is_first_of_machine(notify(kLocalMainFirst)) : process_.is_local_main_process();
}

bool Operations::is_first_of_machine(const ActiveRanks& active) const {
  const int mine = process_.node_rank();
  const auto machines = comm::gather_object(group(), mine);
  for (const int other : active.ranks) {
    if (machines[other] == mine) return other == process_.rank();
  }
  return false;
}

void Operations::notify_attempt(const memory::BatchSizeAttempt& attempt) {
  notify(nlohmann::json::object({{kAttempt, {attempt.start, attempt.batch_size}}}));
}

std::vector<at::Tensor> Operations::join_call(const JointCall& call, const std::vector<at::Tensor>& tensors) {
  const auto description = describe(call, tensors);
  return carry_out(description, tensors, notify(description), group());
}

void Operations::shadow(const nlohmann::json& call, const ActiveRanks& active) {
  if (call == "barrier") {
    process_.wait_for_everyone();
  } else if (call == "check_trigger") {
    reduce_trigger();
  } else if (call == "should_stop") {
    reduce_stop();
  } else if (call == kMainFirst || call == kLocalMainFirst) {
    if (call == kLocalMainFirst) is_first_of_machine(active);
    process::detail::run_in_order(process_, false, call == kMainFirst ? kMainFirst : kLocalMainFirst, [] {});
  } else if (call.is_object() && call.contains(kAttempt)) {
    const auto [start, batch_size] = call.at(kAttempt).get<std::pair<int64_t, int64_t>>();
    memory::detail::agree_without_attempt(group(), {start, batch_size});
  } else if (call == "objects") {
    comm::gather_object(group(), nlohmann::json(nlohmann::json::array()));
  } else {
    carry_out(call, neutral_tensors(call, process_.device()), active, group());
  }
}

}  // namespace hasten::parallel
