// Follower: reads one journal and hands its records to trackers, each on a thread of its own, until the run has ended and
// everything has arrived.
//
// It runs in another process than the training (`hasten track follow`), so that no tracker can slow or hurt it. How far each
// tracker has come is kept in a file beside the journal (NAME.ack); a later follower goes on from there.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/journal.h"
#include "hasten/tracking/registry.h"

namespace hasten::tracking {

/// A tracker to feed: a name with options, or an object.
struct SinkConfig {
  std::string name = {};
  core::Value options = {};
  std::shared_ptr<Tracker> tracker = {};
};

/// How far a tracker has come, as its acknowledgement file says.
struct SinkState {
  std::string name = {};
  JournalPosition position = {};
  /// The end of the run was handed over.
  bool done = false;
  /// Given up after too many failures.
  bool parked = false;
  std::string error = {};
  /// The tracker's own (Tracker::flush).
  core::Value state = {};
};

/// The acknowledgement file of tracker `name` of the journal: "tensorboard.ack", "csv-rank3.ack".
std::filesystem::path ack_path(const std::filesystem::path& journal, const std::string& name);
/// Returns the state in that file, a fresh one if there is none. Throws: DataError if it is damaged.
SinkState read_ack(const std::filesystem::path& journal, const std::string& name);
/// Replaces the file in one step. Throws: DataError.
void write_ack(const std::filesystem::path& journal, const SinkState& state);

/// Writes which built-in trackers a journal has, for later followers: trackers.json, trackers-rank3.json. Throws: DataError.
void write_sinks(const std::filesystem::path& journal, const std::vector<SinkConfig>& sinks);
/// Returns what that file says; what the journal's "start" record says if there is none.
/// Throws: DataError if the journal does not begin with such a record.
std::vector<SinkConfig> read_sinks(const std::filesystem::path& journal, const Registry& registry);

struct FollowerOptions {
  std::filesystem::path journal = {};
  /// Empty: those of read_sinks.
  std::vector<SinkConfig> sinks = {};
  Registry registry = built_in();
  Environment environment = {};
  /// Takes one line for the user: a tracker that has been given up, why.
  std::function<void(const std::string& line)> say = {};
  /// How often the journal is looked at.
  std::chrono::milliseconds poll_interval = std::chrono::milliseconds(100);
  double first_backoff_s = 1;
  double most_backoff_s = 60;
  int most_failures = 20;
  /// No word from a bridge for so long: it is ended.
  double bridge_timeout_s = 60;
};

class Follower {
 public:
  /// Starts the threads. Collective: no. Blocks: no. Throws: UsageError for an unknown tracker, DataError if the journal
  /// cannot be read.
  explicit Follower(FollowerOptions options);
  /// Abandons what has not arrived, without waiting for it.
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  /// Says that nothing more will be written: trackers read to the end, and a run without a "finish" record has crashed.
  /// Collective: no. Blocks: no. Throws: nothing.
  void close();
  /// Waits until all trackers have got the end of the run, or are parked. Returns true if all of them got everything.
  /// Collective: no. Blocks: at most `timeout`. Throws: nothing.
  bool wait(std::chrono::milliseconds timeout);
  /// Returns true if no tracker has anything left to do.
  bool is_done() const;
  std::vector<SinkState> states() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::tracking
