// Follower: reads a journal and passes its records to trackers, each on a thread of its own. It goes on until the run
// has ended and everything has arrived.
//
// It runs in another process than the training (`hasten track follow`), so that no tracker can slow or hurt it. A file
// beside the journal (NAME.ack) holds the progress of each tracker; a later follower goes on from there.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "hasten/tracking/follower/follower_options.h"

namespace hasten::tracking {

class Follower {
 public:
  /// Starts the threads. Throws: UsageError for an unknown tracker, DataError if the journal cannot be read.
  explicit Follower(FollowerOptions options);
  /// Abandons what has not arrived, without waiting for it.
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  /// Declares that nothing more will be written: trackers read to the end, and a run without a "finish" record has
  /// crashed.
  void close();
  /// Waits until all trackers have got the end of the run, or are parked. Returns true if all of them got everything.
  /// Blocks: at most `timeout`.
  bool wait(std::chrono::milliseconds timeout);
  /// Returns true if no tracker has anything left to do.
  bool is_done() const;
  std::vector<SinkState> states() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::tracking
