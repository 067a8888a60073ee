// Schedulers of schedulers; see composed.h.
#include "hasten/optim/composed.h"

#include <algorithm>

#include "optim/parameter_groups.h"

namespace hasten::optim {
namespace {

using Parts = std::vector<std::unique_ptr<Scheduler>>;

nlohmann::json states(const Parts& parts) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& part : parts) all.push_back(part->state());
  return all;
}

void require_as_many(const nlohmann::json& states, const Parts& parts, std::string_view name) {
  detail::require(states.size() == parts.size(), name, "the state's number of schedulers", states.size(),
                  text(parts.size()));
}

}  // namespace

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "SequentialLR"), milestones_(options.milestones) {
  detail::require(!options.schedulers.empty(), name(), "schedulers", "{}", "at least one");
  detail::require(milestones_.size() + 1 == options.schedulers.size(), name(), "the number of milestones",
                  milestones_.size(), text(options.schedulers.size() - 1, ", one fewer than schedulers"));
  const bool ascend =
      std::adjacent_find(milestones_.begin(), milestones_.end(), std::greater_equal<>()) == milestones_.end();
  detail::require(ascend && (milestones_.empty() || milestones_[0] >= 0), name(), "milestones",
                  text("{", join(milestones_), "}"), "steps from 0 on, each later than the one before");
  for (const auto& make : options.schedulers) {
    set_rates(base_lrs());
    schedulers_.push_back(make(optimizer));
  }
  start();
}

size_t SequentialLR::active(int64_t epoch) const {
  return static_cast<size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), epoch) -
                             milestones_.begin());
}

void SequentialLR::start() {
  set_rates(base_lrs());
  Scheduler::start();
  schedulers_[active(0)]->start();
  note_rates();
}

void SequentialLR::restart() {
  start();
}

void SequentialLR::advance() {
  const int64_t epoch = last_epoch() + 1;
  const size_t index = active(epoch);
  if (index > 0 && milestones_[index - 1] == epoch) {
    schedulers_[index]->restart();
  } else {
    schedulers_[index]->step();
  }
  set_last_epoch(epoch);
}

double SequentialLR::rate(size_t, double before, Moment) const {
  return before;  // its parts set the rates
}

void SequentialLR::save(nlohmann::json& state) const {
  state["schedulers"] = states(schedulers_);
}

void SequentialLR::load(const nlohmann::json& state) {
  const auto& saved = state.at("schedulers");
  require_as_many(saved, schedulers_, name());
  for (size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i]->load_state(saved[i]);
  // Last the one whose turn it is: its momentum is the one that holds.
  const size_t now = active(state.at("last_epoch").get<int64_t>());
  schedulers_[now]->load_state(saved[now]);
}

ChainedScheduler::ChainedScheduler(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "ChainedScheduler") {
  detail::require(!options.schedulers.empty(), name(), "schedulers", "{}", "at least one");
  for (const auto& make : options.schedulers) {
    set_rates(base_lrs());
    schedulers_.push_back(make(optimizer));
  }
  set_rates(base_lrs());
  start();
}

void ChainedScheduler::start() {
  Scheduler::start();
  for (const auto& scheduler : schedulers_) scheduler->start();
  note_rates();
}

void ChainedScheduler::restart() {
  set_rates(base_lrs());
  start();
}

void ChainedScheduler::advance() {
  for (const auto& scheduler : schedulers_) scheduler->step();
  set_last_epoch(last_epoch() + 1);
}

double ChainedScheduler::rate(size_t, double before, Moment) const {
  return before;  // its parts set the rates
}

void ChainedScheduler::save(nlohmann::json& state) const {
  state["schedulers"] = states(schedulers_);
}

void ChainedScheduler::load(const nlohmann::json& state) {
  const auto& saved = state.at("schedulers");
  require_as_many(saved, schedulers_, name());
  for (size_t i = 0; i < schedulers_.size(); ++i) schedulers_[i]->load_state(saved[i]);
}

}  // namespace hasten::optim
