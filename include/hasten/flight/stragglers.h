// Stragglers: the rank that the others wait for in each step, by how long each rank waits in collectives.
//
// The rank that is late waits least, and the others wait longer by what it is late. So no clock and no message is
// needed beyond the pages. A pure function of windows of steps; StragglerWatch collects them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hasten/flight/snapshot.h"

namespace hasten::flight {

/// A rank in a window, as times a step.
struct RankPace {
  int rank = 0;
  double step_s = 0;
  double waited_s = 0;   ///< in collectives
  double delayed_s = 0;  ///< it wanted a core and had none
  std::map<std::string, double> phases_s = {};
};

/// Some steps that all ranks have made.
using PaceWindow = std::vector<RankPace>;

struct Straggler {
  int rank = 0;
  double step_s = 0;       ///< a step of the run
  double late_s = 0;       ///< how much longer the others wait in each
  std::string cause = {};  ///< a phase, "less CPU", or "" if none explains it
  double cause_s = 0;      ///< how much of late_s it explains
  double own_s = 0;        ///< the rank's time in it
  double others_s = 0;     ///< the others' median
};

/// Returns the rank that costs the run more than 5 % of a step in 3 of the last 4 windows, the last among them. A cause
/// is named if it explains 80 % of that. Nothing for fewer windows or one rank.
std::optional<Straggler> find_straggler(const std::vector<PaceWindow>& windows);

/// "rank 3 costs the run 13 %: the others wait 41 ms a step for it; 38 ms of them in data (62 ms, others 18 ms)".
std::string describe(const Straggler& straggler);

/// Makes windows of a run's snapshots.
class StragglerWatch {
 public:
  /// A window ends when every rank has made `steps` steps.
  explicit StragglerWatch(int64_t steps = 50) : steps_(steps) {}

  /// Returns true if a window has ended with this snapshot. A rank that has come, gone or begun anew starts over.
  bool add(const Snapshot& snapshot);
  std::optional<Straggler> find() const { return find_straggler(windows_); }

 private:
  const int64_t steps_;
  std::vector<RankState> start_ = {};
  std::vector<PaceWindow> windows_ = {};
};

}  // namespace hasten::flight
