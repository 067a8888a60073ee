// Which trackers a run has: reads log_with and init_kwargs, and refuses what cannot work before anything has started.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hasten/tracking/follower/follower_options.h"
#include "hasten/tracking/follower/tracking_options.h"

namespace hasten::tracking {

struct ResolvedTrackers {
  /// Fed by the command's process.
  std::vector<SinkConfig> built_in = {};
  /// Objects and registered ones, fed by a thread of this process.
  std::vector<SinkConfig> own = {};
  /// Lines for the user.
  std::vector<std::string> infos = {};

  std::vector<std::string> names() const;
};

/// Blocks: for the start of Python if a Python client is named and `probe` is set. Throws: UsageError for an unknown
/// tracker, wrong init_kwargs, a missing logging_dir, project name or client.
ResolvedTrackers resolve_trackers(const TrackersSetup& setup, const core::Value& init_kwargs, bool probe);

/// Throws: UsageError for a name that is no folder's name.
void require_project_name(const std::string& project);

/// Returns the Python of the trackers' clients: HASTEN_TRACKER_PYTHON, else python3 on PATH; empty if there is none.
std::filesystem::path tracker_python(const Environment& environment);

/// Returns those of the modules that this Python has. Blocks: for its start, 30 s at most. Throws: UsageError if it
/// cannot be started.
std::vector<std::string> python_modules(const std::filesystem::path& python, const std::vector<std::string>& modules,
                                        const Environment& environment);

/// Where journals go: journal_dir, else logging_dir, else the user's state folder. Throws: UsageError if there is none
/// of them.
std::filesystem::path journal_root(const TrackersSetup& setup);

}  // namespace hasten::tracking
