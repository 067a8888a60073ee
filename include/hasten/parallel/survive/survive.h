// Survive: a training loop that goes on when ranks die. `hasten launch --survive` replaces a dead rank under its
// number. So ranks, shares of data and the order of sums stay, and the end is that of the undisturbed run, bit for bit.
//
// All ranks meet at the start of the loop, and again after a rank has ended. The lowest rank that has come furthest
// then gives its state to all (heal.h), and what no rank has committed is done again. The loop is described by
// functions, which survived_loop makes of a loader and a step. docs/survive.md is for users.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "hasten/data/loader/loader_state.h"
#include "hasten/parallel/survive/survive_parts.h"

namespace hasten::parallel {

struct SurviveOptions {
  /// Passes over the loader.
  int64_t epochs = 1;
  /// How long the others wait for a rank that is replaced, before the run ends.
  std::chrono::seconds replace_timeout{300};
};

/// What this process has seen of the run.
struct SurviveReport {
  /// Steps of optimizers that were committed, from the run's beginning.
  int64_t num_steps = 0;
  /// How often the ranks have met anew because one of them had ended.
  int64_t num_recoveries = 0;
  /// Recoveries after which a window of this rank was done again.
  int64_t num_repeated = 0;
};

/// A pass over a loader, as survive drives it.
struct SurvivedLoop {
  /// Begins a pass, which gets its first batch.
  std::function<void()> begin = {};
  std::function<bool()> at_end = {};
  /// The program's step with the batch in hand.
  std::function<void()> step = {};
  /// Gets the next batch.
  std::function<void()> advance = {};
  /// Leaves the pass.
  std::function<void()> leave = {};
  std::function<data::LoaderState()> state = {};
  std::function<void(const data::LoaderState&)> load_state = {};
};

/// Returns the loop over a prepared loader. `step` gets `auto& batch`, and outlives the loop, as the loader does.
template <class L, class Step>
SurvivedLoop survived_loop(const L& loader, Step& step) {
  using Iterator = decltype(loader.begin());
  const auto pass = std::make_shared<std::optional<Iterator>>();
  return {.begin = [pass, &loader] { pass->emplace(loader.begin()); },
          .at_end = [pass, &loader] { return **pass == loader.end(); },
          .step = [pass, &step] { step(***pass); },
          .advance = [pass] { ++**pass; },
          .leave = [pass] { pass->reset(); },
          .state = [&loader] { return loader.state(); },
          .load_state = [&loader](const data::LoaderState& state) { loader.load_state(state); }};
}

/// Runs `options.epochs` passes, and `after_epoch` behind each. Dead ranks are replaced where the process's
/// group has meetings (comm/group/rejoin.h); otherwise it is the plain loop.
/// Collective: yes. Blocks: until all ranks have ended. Throws: the exceptions of the loop's functions other than
/// CommError; CommError if a rank was not replaced within replace_timeout, or if the ranks' calls differ; UsageError
/// for what cannot be survived, and if no rank has the run's state any more.
SurviveReport survive(const SurviveParts& parts, const SurviveOptions& options, const SurvivedLoop& loop,
                      const std::function<void(int64_t epoch)>& after_epoch = {});

}  // namespace hasten::parallel
