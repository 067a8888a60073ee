// Diagnosis: which rank keeps the others waiting, in which call, and why. Pure functions of a snapshot.
//
// A rank waits for the members of a group that have not made the call it is in. Followed to its end this gives a rank
// that waits for none, or a circle. report.h puts a diagnosis into words, watcher.h makes the snapshots.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/flight/snapshot.h"

namespace hasten::flight {

struct HangLimits {
  /// How long a rank stands still before it is said (HASTEN_HANG_AFTER). 0: by the run's steps, 10 times their median
  /// and 5 s at least; 30 s before the first.
  double after_s = 0;
  /// How long for what is certain: calls that differ, a rank that is dead, stopped or traced, a circle.
  double certain_after_s = 1;
};

enum class Cause {
  kEnded,      ///< a rank has ended while others wait for it
  kDiffer,     ///< ranks made different calls under one number
  kMissing,    ///< a rank has not made the call
  kCycle,      ///< ranks wait for each other
  kTransport,  ///< all have made the call; its bytes do not come
  kIdle,       ///< no rank waits for another one, and none makes progress
};

struct Diagnosis {
  Cause cause = Cause::kMissing;
  std::vector<int> culprits = {};  ///< ranks, ascending
  std::vector<int> waiting = {};   ///< ranks that wait for them, directly or not
  bool certain = false;
  /// The culprit computes, which may be right: a line is said first, the box later.
  bool computes = false;
  double for_s = 0;  ///< since when the longest waits
  double limit_s = 0;
  CallState call = {};    ///< the call that is waited in; of the culprits' side for kIdle
  GroupState group = {};  ///< its group, as a waiting rank has it
  /// Sentences beside the reason: both sides of a difference, the parting of calls, the members of a circle.
  std::vector<std::string> notes = {};

  /// Equal for the same standstill at a later time.
  std::string key() const;
};

/// Returns the reason of a standstill; nothing if there is none yet.
std::optional<Diagnosis> diagnose(const Snapshot& snapshot, const HangLimits& limits = {});

/// The time after which a run of these steps stands still.
double hang_after_s(const Snapshot& snapshot, const HangLimits& limits);

/// Returns why this rank does not come, as a predicate: "is stopped; kill -CONT 42 lets it go on", "sleeps in a lock".
/// By its process, and by its facts if they are there. "" if nothing is known.
std::string why(const RankState& rank);
/// True if the machine keeps cores or memory from a rank that runs. Another start would be kept short as well.
bool is_kept_short(const RankState& rank);
/// True if the rank computes, as far as is known.
bool computes(const RankState& rank);

/// "all_reduce 1204 of 'world': sum of float32 [1048576] at bucket.cpp:131".
std::string describe_call(const CallState& call, const GroupState* group);
/// "all_reduce 1204"; "receive 3 from 2 (tag 0)".
std::string short_call(const CallState& call);

}  // namespace hasten::flight
