// Counting, setting rates and keeping state, for all schedulers; see scheduler.h.
#include "hasten/optim/schedulers/scheduler.h"

#include "hasten/core/error.h"
#include "optim/parameter_groups.h"
#include "optim/schedulers/read_state.h"

namespace hasten::optim {

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, std::string name)
    : optimizer_(&optimizer), name_(std::move(name)), base_lrs_(detail::learning_rates(optimizer)) {}

void Scheduler::check_groups() const {
  const size_t now = optimizer_->param_groups().size();
  if (now == num_groups()) return;
  throw UsageError(Origin{"optim"}, name_, ": the optimizer has ", now, " parameter groups, at construction ",
                   num_groups(), ". Add groups before the scheduler is made.");
}

void Scheduler::set_rates(const std::vector<double>& rates) {
  check_groups();
  for (size_t group = 0; group < rates.size(); ++group) {
    detail::set_learning_rate(*optimizer_, group, rates[group]);
  }
}

void Scheduler::note_rates() {
  rates_ = detail::learning_rates(*optimizer_);
}

void Scheduler::move_to(int64_t epoch, Moment moment) {
  check_groups();
  last_epoch_ = epoch;
  std::vector<double> rates = detail::learning_rates(*optimizer_);
  for (size_t group = 0; group < num_groups(); ++group) {
    rates[group] = rate(group, rates[group], moment);
    if (const auto value = momentum(group)) detail::set_momentum(*optimizer_, group, *value);
  }
  set_rates(rates);
  note_rates();
}

void Scheduler::start() {
  step_count_ = 1;
  move_to(0, Moment::kStart);
}

void Scheduler::restart() {
  step_count_ = 1;
  move_to(0, Moment::kRestart);
}

void Scheduler::advance() {
  move_to(last_epoch_ + 1, Moment::kStep);
}

void Scheduler::step() {
  advance();
  ++step_count_;
  note_rates();
}

std::optional<double> Scheduler::momentum(size_t) const {
  return {};
}
void Scheduler::save(core::Value&) const {}
void Scheduler::load(const core::Value&) {}

core::Value Scheduler::state() const {
  core::Value state = core::Value::map({{"scheduler", name_},
                                        {"last_epoch", last_epoch_},
                                        {"step_count", step_count_},
                                        {"base_lrs", base_lrs_},
                                        {"last_lr", rates_}});
  if (!settings_.is_null()) state["options"] = settings_;
  save(state);
  return state;
}

void Scheduler::load_state(const core::Value& state) {
  const core::Value* found = state.find("scheduler");
  const std::string of = found != nullptr && found->is_string() ? found->as_string() : "";
  if (of != name_) {
    throw UsageError(Origin{"optim"}, name_, ": the state is of ", of.empty() ? "no scheduler" : of,
                     "; expected one of ", name_, ". Load it with the scheduler that gave it.");
  }
  std::vector<double> base_lrs, rates;
  int64_t last_epoch = 0, step_count = 0;
  detail::read_state(name_, [&] {
    base_lrs = detail::doubles_of(state.at("base_lrs"));
    rates = detail::doubles_of(state.at("last_lr"));
    last_epoch = state.at("last_epoch").as_int();
    step_count = state.at("step_count").as_int();
  });
  if (base_lrs.size() != num_groups() || rates.size() != num_groups()) {
    throw UsageError(Origin{"optim"}, name_, ": the state is of an optimizer with ", base_lrs.size(),
                     " parameter groups; this one has ", num_groups(), ".");
  }
  load(state);
  last_epoch_ = last_epoch;
  step_count_ = step_count;
  if (!base_lrs_are_options_) base_lrs_ = std::move(base_lrs);
  set_rates(rates);
  for (size_t group = 0; group < num_groups(); ++group) {
    if (const auto value = momentum(group)) detail::set_momentum(*optimizer_, group, *value);
  }
  note_rates();
}

}  // namespace hasten::optim
