// The work of `hasten track`, apart from reading its command line and printing. It follows a journal, reports the
// progress of trackers, completes runs whose follower has died, and feeds a run to a further tracker.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/follower/follower.h"

namespace hasten::tracking {

using WarnLine = std::function<void(const std::string&)>;

/// How far the trackers of one journal have come.
struct JournalStatus {
  struct Sink {
    SinkState state = {};
    int64_t num_bytes_left = 0;
  };
  std::filesystem::path journal = {};
  std::string project = {}, run_id = {};
  int rank = 0;
  /// Whether the training still writes, and how the run ended: "", "finished", "failed" …
  bool is_running = false;
  std::string end = {};
  std::vector<Sink> sinks = {};
  /// Lines that are no records.
  std::vector<JournalProblem> problems = {};
};

/// Returns the first parts of all journals in a folder and below, in the order of their paths.
/// Throws: DataError if there is none.
std::vector<std::filesystem::path> find_journals(const std::filesystem::path& folder);

/// Reads a journal and the acknowledgements beside it. Throws: DataError.
JournalStatus read_status(const std::filesystem::path& journal);

/// Runs a follower of the journal until its trackers have the end of the run. The end of standard input means that the
/// training is gone. They then have `drain_timeout_s`. Returns 0, or 3 if not everything has arrived.
/// Blocks: yes. Throws: DataError, UsageError (another process follows the journal).
int follow_until_end(const std::filesystem::path& journal, double drain_timeout_s, const Environment& environment,
                     const WarnLine& warn);

/// Hands over what has not arrived of an ended run, to its own trackers or, with `to`, to that one. Returns true if
/// everything has arrived. Blocks: at most `timeout_s`. Throws: UsageError if the run is still written or followed.
bool complete(const std::filesystem::path& journal, const std::vector<SinkConfig>& to, double timeout_s,
              const Environment& environment, const WarnLine& warn);

}  // namespace hasten::tracking
