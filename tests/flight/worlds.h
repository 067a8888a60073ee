// Snapshots of made-up runs, for tests of what is said about them.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/text.h"
#include "hasten/flight/snapshot.h"

namespace hasten::testing {

using flight::CallKind;
using flight::CallState;
using flight::Facts;
using flight::GroupState;
using flight::RankState;
using flight::SizesRule;
using flight::Snapshot;

inline constexpr uint64_t kWorld = 1001;

/// A run whose ranks are in one group, "world", and have made a step each 0.3 s.
class MadeRun {
 public:
  explicit MadeRun(int num_ranks) {
    all.world_size = num_ranks;
    std::vector<int> members;
    for (int rank = 0; rank < num_ranks; ++rank) {
      RankState state{.rank = rank, .world_size = num_ranks, .pid = 100 + rank, .progress_s = 8};
      state.program = "train";
      state.step = 300;
      state.epoch = 2;
      state.step_times_s = std::vector<double>(32, 0.3);
      all.ranks.push_back(state);
      members.push_back(rank);
    }
    group(kWorld, "world", members);
  }

  RankState& operator[](int rank) { return all.ranks[static_cast<size_t>(rank)]; }

  void group(uint64_t key, const std::string& name, const std::vector<int>& members) {
    for (size_t i = 0; i < members.size(); ++i) {
      (*this)[members[i]].groups.push_back(
          {.key = key, .name = name, .rank = static_cast<int>(i), .size = static_cast<int>(members.size())});
    }
  }

  /// The rank makes its next call of the group, which has ended unless it waits for `waits_s`.
  CallState& call(int rank, std::optional<double> waits_s = {}, const std::string& label = "all_reduce(sum) of float32",
                  const std::string& site = "train.cpp:41", std::vector<int64_t> sizes = {1024},
                  uint64_t key = kWorld) {
    RankState& state = (*this)[rank];
    for (GroupState& group : state.groups) {
      if (group.key != key) continue;
      const auto rule = label == "barrier" ? SizesRule::kNone : SizesRule::kEqual;
      if (label == "barrier") sizes.clear();
      state.calls.push_back({.group = key,
                             .number = ++group.calls,
                             .label = label,
                             .site = site,
                             .rule = rule,
                             .sizes = sizes,
                             .dims = static_cast<int>(sizes.size()),
                             .posted_s = waits_s.value_or(10),
                             .waits_s = waits_s,
                             .ended = !waits_s});
      if (waits_s) state.progress_s = *waits_s;
    }
    return state.calls.back();
  }
  CallState& barrier(int rank, std::optional<double> waits_s, const std::string& site, uint64_t key = kWorld) {
    return call(rank, waits_s, "barrier", site, {}, key);
  }
  void message(int rank, CallKind kind, int peer, int tag, double waits_s, const std::string& site) {
    (*this)[rank].calls.push_back({.group = kWorld,
                                   .kind = kind,
                                   .number = 1,
                                   .label = kind == CallKind::kSend ? "send" : "receive",
                                   .site = site,
                                   .peer = peer,
                                   .tag = tag,
                                   .waits_s = waits_s});
    (*this)[rank].progress_s = waits_s;
  }

  /// The facts of a rank whose main thread is in this state, and does this.
  void facts(int rank, char state, const std::string& doing, double cpu_share = 0) {
    (*this)[rank].facts = Facts{
        .pid = (*this)[rank].pid, .threads = {{(*this)[rank].pid, "train", state, doing}}, .cpu_share = cpu_share};
  }
  void thread(int rank, const std::string& doing, char state = 'S') {
    (*this)[rank].facts->threads.push_back({(*this)[rank].pid + 1000, "worker", state, doing});
  }

  Snapshot all;
};

}  // namespace hasten::testing
