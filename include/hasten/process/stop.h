// StopSignals: a run that is about to be preempted ends in order, on all ranks at the same step.
//
// Clusters say SIGTERM (or SIGUSR1, Slurm's --signal) to a process some time before they kill it. A rank that
// stopped by itself would leave the others waiting in their next collective; so it only takes note, and at
// the end of a step all ranks ask each other.
#pragma once

#include <csignal>
#include <cstdint>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::process {

/// Takes note of signals from its construction to its end, instead of their default action, which would end
/// the process. A handler that the program had set before is called too. Several may exist; the last one's
/// end gives the signals back as they were, unless other handlers were set since, or should_stop has
/// said that all stop: then a signal that comes later does not disturb the orderly end.
class StopSignals {
 public:
  /// Throws: UsageError for a signal that cannot be caught.
  explicit StopSignals(std::vector<int> signals = {SIGTERM, SIGUSR1});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Whether one of them has come to this process since construction.
  bool received() const noexcept;
  /// Whether one of them has come to any rank of the group: the same answer on all. True from then on.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  bool should_stop(const comm::Group& group) const;

 private:
  std::vector<int> signals_;
  std::vector<int64_t> before_;  // how often each had come at construction
  mutable bool stopping_ = false;
};

}  // namespace hasten::process
