// Heal: the state of a rank that has come furthest goes to all, after the ranks have met anew. Used by survive.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/survive/survive_parts.h"
#include "hasten/training/stateful.h"

namespace hasten::parallel {

/// A rank's place when the ranks meet.
struct Standing {
  /// Windows and ends of epochs that it has committed.
  int64_t committed = 0;
  /// False for a process that has taken a dead rank's place and has no state yet.
  bool has_state = true;
  /// Its last step came to its end. False if an error cut it off behind the optimizer's step.
  bool is_whole = true;
};

/// Returns the rank whose state all take: of those with a state the furthest, then a whole one, then the lowest.
/// Nothing if no rank has a state.
std::optional<int> choose_root(const std::vector<Standing>& ranks) noexcept;

/// Collective: yes. Blocks: yes. Throws: CommError.
std::vector<Standing> gather_standings(const comm::Group& group, const Standing& mine);

/// Returns root's state; its tensors are on the CPU on other ranks. Collective: yes. Blocks: yes. Throws: CommError.
training::State broadcast_state(const comm::Group& group, const training::State& mine, int root);

/// Gives every rank root's models, optimizers, schedulers, scaler and registered objects. Gradients are dropped.
/// Collective: yes. Blocks: yes. Throws: CommError; UsageError if the ranks' models or objects differ.
void heal(const SurviveParts& parts, int root);

}  // namespace hasten::parallel
