// Counting, and comparing a state with a loader; see epoch_counter.h.
#include "hasten/data/loader/detail/epoch_counter.h"

#include <algorithm>
#include <utility>

namespace hasten::data::detail {

LoaderState counted_in_samples(LoaderState state, size_t batch_size) {
  if (state.batches == 0) return state;
  state.position += std::exchange(state.batches, 0) * batch_size;
  if (state.num_samples > 0) state.position = std::min(state.position, state.num_samples);
  return state;
}

void check_state(const LoaderState& state, const StateFacts& facts, const Origin& origin) {
  const uint64_t num_samples = facts.num_samples.value_or(0);
  const bool another_length = facts.num_samples && state.num_samples != num_samples;
  const bool another_seed = facts.seed && state.seed && *state.seed != *facts.seed;
  if (another_length || another_seed) {
    const auto seed_text = [](const std::optional<uint64_t>& seed) {
      return seed ? text("seed ", *seed) : "no seed yet";
    };
    throw UsageError(origin, "the state is of a loader with num_samples = ", state.num_samples, " and ",
                     seed_text(state.seed), ", this one has num_samples = ", num_samples, " and ",
                     seed_text(facts.seed), ". Load it into a loader over the same dataset with the same sampler.");
  }
  if (facts.num_samples && state.position > num_samples) {
    throw UsageError(origin, "the state's position = ", state.position, " lies behind num_samples = ", num_samples,
                     ". It was not taken from a loader over this dataset.");
  }
  if (facts.draws && state.position > 0 && state.generator.empty()) {
    throw UsageError(origin, "the state at position = ", state.position, " has no generator, but this loader's ",
                     "sampler draws from the default one. Load it into a loader with the sampler it was taken from.");
  }
}

void throw_unordered_state(const Origin& origin) {
  throw UsageError(origin, "with enforce_ordering = false batches are not given in their order, so there is no ",
                   "position to go on from. Use enforce_ordering = true.");
}

std::function<void(const std::exception&)> leaves_words(const comm::Group& group) {
  return [group](const std::exception& error) {
    if (group.world_size() > 1) group.fail(error.what());
  };
}

void EpochCounter::set_epoch(uint64_t epoch) {
  if (now_->loaded && now_->epoch == epoch) return;
  *now_ = {.next_epoch = epoch, .epoch = epoch, .begun = now_->begun};
}

EpochStart EpochCounter::begin() {
  Now& now = *now_;
  EpochStart start{now.next_epoch};
  if (std::exchange(now.loaded, false)) start = {now.epoch, now.position, std::move(now.generator)};
  now = {.next_epoch = start.epoch + 1, .epoch = start.epoch, .position = start.position, .begun = now.begun + 1};
  return start;
}

std::function<void(std::optional<size_t>)> EpochCounter::follow() const {
  return [now = now_, pass = now_->begun](std::optional<size_t> end) {
    if (now->begun != pass || now->loaded) return;
    if (!end) now->epoch = now->next_epoch;
    now->position = end.value_or(0);
  };
}

LoaderState EpochCounter::state() const {
  return {.epoch = now_->epoch, .position = now_->position, .generator = now_->generator};
}

void EpochCounter::load(const LoaderState& state) {
  *now_ = {.next_epoch = state.epoch,
           .epoch = state.epoch,
           .position = state.position,
           .begun = now_->begun,
           .generator = state.generator,
           .loaded = true};
}

}  // namespace hasten::data::detail
