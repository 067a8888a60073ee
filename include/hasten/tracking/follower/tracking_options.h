// TrackingOptions: how a program's runs are tracked; TrackersSetup: all that its trackers are made from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/follower/registry.h"
#include "hasten/tracking/journal/journal.h"

namespace hasten::tracking {

struct TrackingOptions {
  /// The trackers that `log_with` can name; add your own to a copy of built_in().
  Registry registry = built_in();
  /// Where journals go, as `<journal_dir>/<project>/<run id>/journal.jsonl`. Empty: logging_dir, else
  /// $XDG_STATE_HOME/hasten, else ~/.local/state/hasten. Choose a local disk if logging_dir is on a network.
  std::filesystem::path journal_dir = {};
  /// Each rank writes its steps a second, step time, memory and what add_metrics gives once in metrics_interval_s.
  bool per_rank_metrics = true;
  double metrics_interval_s = 1;
  /// Memory for images that wait to be written as PNG. Beyond it the oldest are dropped, with a single warning.
  int64_t image_memory_bytes = 256 << 20;
  /// How long trackers may take to get the rest of a run whose process has died.
  double drain_timeout_s = 30;
  /// How long end_training waits for them.
  double finish_timeout_s = 60;
  /// Name of the run's folder. Empty: made from the time. A run of that name that is there already goes on.
  std::string run_id = {};
  /// The command that follows journals. Empty: HASTEN_TRACK_PROGRAM, else `hasten` beside this program, else on PATH.
  /// If there is none, a thread of this process does it.
  std::filesystem::path program = {};
  JournalOptions journal = {};
};

/// Facts that an Accelerator has when it makes its trackers.
struct TrackersSetup {
  std::vector<LogWith> log_with = {};
  TrackingOptions options = {};
  std::filesystem::path logging_dir = {};
  int rank = 0;
  int world_size = 1;
  /// The same on all ranks and different for each start of the program: the run's id comes from it.
  std::string run_key = {};
  Environment environment = {};
};

}  // namespace hasten::tracking
