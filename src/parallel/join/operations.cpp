// See operations.h.
#include "hasten/parallel/join/operations.h"

#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/text.h"

namespace hasten::parallel {
namespace {

constexpr const char *kBarrier = "barrier", *kObjects = "gather_object", *kTrigger = "check_trigger",
                     *kStop = "should_stop";
constexpr const char* kOfProgram =
    " on the process's group (reduce, gather and wait_for_everyone of the Accelerator need no more than the ranks with "
    "data)";
constexpr const char* kAttempt = "find_executable_batch_size";

}  // namespace

Operations::Operations(process::Process process, std::shared_ptr<training::GradientState> gradients,
                       const std::optional<comm::Group>& data)
    : process_(std::move(process)),
      group_(process_.group().with_check(true)),
      data_(data ? data->with_check(true) : group_),
      own_process_(process_.with_group(process_.group().with_observer([open = open_](const char* operation) {
        if (open->join) open->join->require_all(text(operation, kOfProgram));
      }))),
      own_group_(own_process_.group().with_check(true)),
      gradients_(std::move(gradients)) {}

void Operations::wait_for_everyone() {
  notify(kBarrier);
  process_.wait_for_everyone();
}

bool Operations::check_trigger() {
  notify(kTrigger);
  return reduce_trigger();
}

bool Operations::reduce_trigger() {
  const auto mine = at::scalar_tensor(triggered_ ? 1 : 0, at::kInt);
  const comm::Purpose purpose("check_trigger");
  const bool any = comm::reduce(group(), mine).item<int>() > 0;
  if (any) triggered_ = false;
  return any;
}

bool Operations::should_stop() {
  notify(kStop);
  return reduce_stop();
}

bool Operations::reduce_stop() {
  if (!stop_signals_) stop_signals_ = std::make_unique<process::StopSignals>();
  return stop_signals_->should_stop(group());
}

Logger Operations::logger(const std::string& name) {
  const auto wait = [process = process_, weak = weak_from_this()] {
    if (const auto own = weak.lock()) own->notify(kBarrier);
    process.wait_for_everyone();
  };
  return Logger(name, {process_.rank(), process_.world_size(), wait});
}

bool Operations::goes_first() {
  if (!is_joining()) return process_.is_main_process();
  refuse_parts_of_models(kMainFirst);
  return notify(kMainFirst).first() == process_.rank();
}

bool Operations::goes_first_locally() {
  if (!is_joining()) return process_.is_local_main_process();
  refuse_parts_of_models(kLocalMainFirst);
  return is_first_of_machine(notify(kLocalMainFirst));
}

// Turns go by ranks of the process, those with data by models.
void Operations::refuse_parts_of_models(const char* call) const {
  if (data_.world_size() != group_.world_size()) reject_in_join(text(call, " of models over several ranks"));
}

bool Operations::is_first_of_machine(const training::ActiveRanks& active) const {
  const int mine = process_.node_rank();
  const comm::Purpose purpose("local_main_process_first");
  const auto machines = comm::gather_object(group(), mine);
  for (const int other : active.ranks) {
    if (machines[other] == mine) return other == process_.rank();
  }
  return false;
}

void Operations::notify_attempt(const memory::BatchSizeAttempt& attempt) {
  notify(training::JoinCall{kComponent, kAttempt, {attempt.start, attempt.batch_size}});
}

std::vector<at::Tensor> Operations::join_call(const TensorCall& call, const std::vector<at::Tensor>& tensors) {
  const auto described = call.with(tensors);
  return carry_out(described, tensors, notify(described.encode(kComponent)), data());
}

void Operations::shadow(const training::JoinCall& call, const training::ActiveRanks& active) {
  const std::string& operation = call.operation;
  if (operation == kBarrier) {
    process_.wait_for_everyone();
  } else if (operation == kTrigger) {
    reduce_trigger();
  } else if (operation == kStop) {
    reduce_stop();
  } else if (operation == kMainFirst) {
    process::detail::run_in_order(process_, false, kMainFirst, [] {});
  } else if (operation == kLocalMainFirst) {
    is_first_of_machine(active);
    process::detail::run_in_order(process_, false, kLocalMainFirst, [] {});
  } else if (operation == kAttempt) {
    memory::detail::agree_without_attempt(group(), {call.integers.at(0), call.integers.at(1)});
  } else if (operation == kObjects) {
    comm::gather_object(data(), core::Value::list());
  } else {
    const auto described = TensorCall::decode(call);
    carry_out(described, neutral_tensors(described, process_.device()), active, data());
  }
}

}  // namespace hasten::parallel
