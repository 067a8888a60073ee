// StopSignals: a run that is about to be preempted ends in order, on all ranks at the same step.
//
// Clusters send SIGTERM (or SIGUSR1, Slurm's --signal) to a process some time before they kill it. A rank that stopped
// alone would leave the others waiting in their next collective. So it only takes note, and at the end of a step the
// ranks agree.
#pragma once

#include <csignal>
#include <cstdint>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::process {

/// Takes note of signals from its construction to its end, instead of their default action, which would end the
/// process. A handler that the program had set before is called too. Several may exist. The last one's end restores the
/// signals, unless other handlers were set since. It does not restore them once should_stop has returned true, so that
/// a later signal does not disturb the orderly end.
class StopSignals {
 public:
  /// Throws: UsageError for a signal that cannot be caught.
  explicit StopSignals(std::vector<int> signals = {SIGTERM, SIGUSR1});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns true if one of them has come to this process since construction.
  bool received() const noexcept;
  /// Returns true if one of them has come to any rank of the group: the same answer on all. True from then on.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  bool should_stop(const comm::Group& group) const;

 private:
  std::vector<int> signals_;
  std::vector<int64_t> before_;  // how often each had come at construction
  mutable bool stopping_ = false;
};

}  // namespace hasten::process
