// FollowerOptions: the journal that a follower reads, the trackers that it feeds, and the files beside the journal with
// each tracker's progress.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/follower/registry.h"
#include "hasten/tracking/journal/journal.h"

namespace hasten::tracking {

/// A tracker to feed: a name with options, or an object.
struct SinkConfig {
  std::string name = {};
  core::Value options = {};
  std::shared_ptr<Tracker> tracker = {};
};

/// The progress of a tracker, from its acknowledgement file.
struct SinkState {
  std::string name = {};
  JournalPosition position = {};
  /// The end of the run was passed on.
  bool done = false;
  /// Given up after too many failures.
  bool parked = false;
  std::string error = {};
  /// The tracker's own (Tracker::flush).
  core::Value state = {};
};

/// Returns the acknowledgement file of tracker `name` of the journal: "tensorboard.ack", "csv-rank3.ack".
std::filesystem::path ack_path(const std::filesystem::path& journal, const std::string& name);
/// Returns the state in that file, a fresh one if there is none. Throws: DataError if it is damaged.
SinkState read_ack(const std::filesystem::path& journal, const std::string& name);
/// Replaces the file in one step. Throws: DataError.
void write_ack(const std::filesystem::path& journal, const SinkState& state);

/// Writes which built-in trackers a journal has, for later followers: trackers.json, trackers-rank3.json. Throws:
/// DataError.
void write_sinks(const std::filesystem::path& journal, const std::vector<SinkConfig>& sinks);
/// Returns the contents of that file. If there is none, returns the contents of the journal's "start" record. Throws:
/// DataError if the journal does not begin with such a record.
std::vector<SinkConfig> read_sinks(const std::filesystem::path& journal, const Registry& registry);
/// Returns the journal's first record. Throws: DataError if it is not that of a run's start.
Record read_start(const std::filesystem::path& journal);

struct FollowerOptions {
  std::filesystem::path journal = {};
  /// Empty: those of read_sinks.
  std::vector<SinkConfig> sinks = {};
  Registry registry = built_in();
  Environment environment = {};
  /// Takes one line for the user: a tracker that has been given up, why.
  std::function<void(const std::string& line)> warn = {};
  /// How often the journal is looked at.
  std::chrono::milliseconds poll_interval = std::chrono::milliseconds(100);
  double first_backoff_s = 1;
  double most_backoff_s = 60;
  int most_failures = 20;
  /// No word from a bridge for so long: it is ended.
  double bridge_timeout_s = 60;
};

}  // namespace hasten::tracking
