// Counting, setting rates and keeping state, for all schedulers; see scheduler.h.
#include "hasten/optim/schedulers/scheduler.h"

#include "hasten/core/error.h"
#include "optim/parameter_groups.h"

namespace hasten::optim {

using nlohmann::json;

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
void Scheduler::save(json&) const {}
void Scheduler::load(const json&) {}

json Scheduler::state() const {
  json state{{"scheduler", name_},
             {"last_epoch", last_epoch_},
             {"step_count", step_count_},
             {"base_lrs", base_lrs_},
             {"last_lr", rates_}};
  if (!settings_.is_null()) state["options"] = settings_;
  save(state);
  return state;
}

void Scheduler::load_state(const json& state) {
  const bool named = state.is_object() && state.contains("scheduler") && state.at("scheduler").is_string();
  const std::string of = named ? state.at("scheduler").get<std::string>() : "";
  if (of != name_) {
    throw UsageError(Origin{"optim"}, name_, ": the state is of ", of.empty() ? "no scheduler" : of,
                     "; expected one of ", name_, ". Load it with the scheduler that gave it.");
  }
  try {
    auto base_lrs = state.at("base_lrs").get<std::vector<double>>();
    const auto rates = state.at("last_lr").get<std::vector<double>>();
    if (base_lrs.size() != num_groups() || rates.size() != num_groups()) {
      throw UsageError(Origin{"optim"}, name_, ": the state is of an optimizer with ", base_lrs.size(),
                       " parameter groups; this one has ", num_groups(), ".");
    }
    load(state);
    last_epoch_ = state.at("last_epoch").get<int64_t>();
    step_count_ = state.at("step_count").get<int64_t>();
    if (!base_lrs_are_options_) base_lrs_ = std::move(base_lrs);
    set_rates(rates);
    for (size_t group = 0; group < num_groups(); ++group) {
      if (const auto value = momentum(group)) detail::set_momentum(*optimizer_, group, *value);
    }
    note_rates();
  } catch (const json::exception& error) {
    throw UsageError(Origin{"optim"}, name_, ": the state cannot be read: ", error.what(),
                     ". Expected what state() gave.");
  }
}

}  // namespace hasten::optim
