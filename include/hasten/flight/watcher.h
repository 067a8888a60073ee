// Watcher: the thread of a rank that answers questions about it, and looks after the ranks of its host.
//
// It wakes each second. Of the ranks on a host the lowest one with a fresh heartbeat looks. So the death, stop or full
// pipe of one rank does not silence the report. In a run of several hosts the lowest of their lookers compares
// (hosts.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hasten/flight/diagnose.h"
#include "hasten/flight/hosts.h"
#include "hasten/flight/recorder.h"

namespace hasten::flight {

struct WatchOptions {
  HangLimits limits = {};
  /// Kills the culprit (SIGKILL) when its box is said.
  bool kill = false;
  /// The signal by which stacks are taken; 0: none are.
  int stack_signal = 0;
  /// Takes each box and line besides standard error, on the watch thread.
  std::function<void(const std::string& words)> on_report = {};
  /// Opens the way to the lookers of other hosts, on the watch thread of a looker. Empty, or if it throws: the ranks
  /// of this host are compared alone.
  std::function<std::unique_ptr<HostLink>()> connect_hosts = {};
};

class Watcher {
 public:
  /// Starts the thread. If the signal cannot be taken, because the program uses it, no stacks are taken.
  Watcher(std::shared_ptr<Recorder> recorder, WatchOptions options);
  /// Ends it. A report that is being made is finished.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::flight
