// Schedulers of schedulers; see composed.h.
#include "hasten/optim/schedulers/composed.h"

#include <algorithm>

#include "optim/parameter_groups.h"
#include "optim/schedulers/read_state.h"

namespace hasten::optim {

ComposedScheduler::ComposedScheduler(torch::optim::Optimizer& optimizer, std::string name,
                                     const std::vector<Recipe>& recipes)
    : Scheduler(optimizer, std::move(name)) {
  detail::require(!recipes.empty(), this->name(), "schedulers", "{}", "at least one");
  for (const auto& make : recipes) {
    parts_.push_back(make(optimizer));
    set_rates(base_lrs());
  }
}

void ComposedScheduler::save(core::Value& state) const {
  core::Value& states = state["schedulers"] = core::Value::list();
  for (const auto& part : parts_) states.push_back(part->state());
}

void ComposedScheduler::load(const core::Value& state) {
  core::Value::List states;
  detail::read_state(name(), [&] { states = state.at("schedulers").as_list(); });
  detail::require(states.size() == parts_.size(), name(), "the state's number of schedulers", states.size(),
                  text(parts_.size()));
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->load_state(states[i]);
}

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : ComposedScheduler(optimizer, "SequentialLR", options.schedulers), milestones_(options.milestones) {
  detail::require(milestones_.size() + 1 == options.schedulers.size(), name(), "the number of milestones",
                  milestones_.size(), text(options.schedulers.size() - 1, ", one fewer than schedulers"));
  const bool ascend =
      std::adjacent_find(milestones_.begin(), milestones_.end(), std::greater_equal<>()) == milestones_.end();
  detail::require(ascend && (milestones_.empty() || milestones_[0] >= 0), name(), "milestones",
                  text("{", join(milestones_), "}"), "steps from 0 on, each later than the one before");
  start();
}

size_t SequentialLR::active(int64_t epoch) const noexcept {
  return static_cast<size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), epoch) - milestones_.begin());
}

void SequentialLR::start() {
  set_rates(base_lrs());
  Scheduler::start();
  parts()[active(0)]->start();
  note_rates();
}

void SequentialLR::restart() {
  start();
}

bool SequentialLR::finished() const noexcept {
  const size_t now = active(last_epoch());
  return now == active(last_epoch() + 1) && parts()[now]->finished();
}

void SequentialLR::advance() {
  const int64_t epoch = last_epoch() + 1;
  const size_t index = active(epoch);
  if (index > 0 && milestones_[index - 1] == epoch) {
    parts()[index]->restart();
  } else {
    parts()[index]->step();
  }
  set_last_epoch(epoch);
}

void SequentialLR::load(const core::Value& state) {
  ComposedScheduler::load(state);
  // Last the one whose turn it is: its momentum is the one that holds.
  const size_t now = active(state.at("last_epoch").as_int());
  parts()[now]->load_state(state.at("schedulers").as_list()[now]);
}

ChainedScheduler::ChainedScheduler(torch::optim::Optimizer& optimizer, const Options& options)
    : ComposedScheduler(optimizer, "ChainedScheduler", options.schedulers) {
  start();
}

void ChainedScheduler::start() {
  Scheduler::start();
  for (const auto& scheduler : parts()) scheduler->start();
  note_rates();
}

void ChainedScheduler::restart() {
  set_rates(base_lrs());
  start();
}

bool ChainedScheduler::finished() const noexcept {
  return std::any_of(parts().begin(), parts().end(), [](const auto& part) { return part->finished(); });
}

void ChainedScheduler::advance() {
  for (const auto& scheduler : parts()) scheduler->step();
  set_last_epoch(last_epoch() + 1);
}

}  // namespace hasten::optim
