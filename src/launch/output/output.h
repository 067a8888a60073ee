// The use of a worker's standard output and error: shown, with or without a prefix, saved in files, or both.
//
// The meaning and the layout of files are torchrun's (`--log_dir`, `--redirects`, `--tee`, `--local_ranks_filter`).
// Pure decisions and the folders they need; moving the bytes is the worker shim's (src/launch/output/worker_output.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/launch/base/worker_place.h"

namespace hasten::launcher {

/// The use of a single stream.
struct StreamPlan {
  bool shown = true;        ///< on the launcher's own stream
  std::string prefix = {};  ///< before each line shown
  std::string file = {};    ///< "" for none
  /// Lines with one of these words go to words_file as well, after words_prefix.
  std::vector<std::string> words = {};
  std::string words_file = {};  ///< "" for none
  std::string words_prefix = {};
};

/// Plans of one worker's two streams.
struct OutputPlan {
  StreamPlan out = {};
  StreamPlan err = {};
};

struct OutputOptions {
  /// Parent of the run's folder; "" for none. "/dev/null": no files at all, as torchrun has it.
  std::string log_dir = {};
  /// Streams that go to files instead of the launcher's: "0" none, "1" output, "2" error, "3" both, or one
  /// for each local rank ("0:3,1:2"). "" is "0".
  std::string redirects = {};
  /// Streams that go to files and to the launcher's own, each line with torchrun's prefix "[default0]:".
  std::string tee = {};
  /// Output lines with any of these words are copied to one file of all workers of an attempt. The files are
  /// filtered_stdout.log and filtered_stderr.log; `tee` limits which streams count.
  std::vector<std::string> duplicate_stdout_filters = {};
  std::vector<std::string> duplicate_stderr_filters = {};
  /// The workers whose streams are shown; all if empty.
  std::vector<int> local_ranks_filter = {};
  /// "[rank 3] " before each line that is shown.
  bool prefix_ranks = false;
  /// That prefix in colour on the launcher's output, error.
  bool colour_out = false;
  bool colour_err = false;
  std::string role = "default";
};

/// Returns the plan for the worker at `place`, its files in `folder`/<local rank>. Throws: UsageError if an option is
/// malformed or names a worker that there is not.
OutputPlan plan_output(const OutputOptions& options, const WorkerPlace& place, const std::string& folder);

/// Returns true if the options request files.
bool wants_files(const OutputOptions& options);

/// The folders of one run's files: <log_dir>/<run id>_XXXXXX/attempt_<n>/<local rank>. They stay.
class LogFolders {
 public:
  /// Makes the run's folder. `log_dir` is made if need be. Throws: UsageError if it cannot be.
  LogFolders(const std::string& log_dir, const std::string& run_id);

  const std::string& path() const { return path_; }

  /// Makes the folders of an attempt. Returns the folder that holds a folder for each local rank. Throws: UsageError if
  /// they cannot be made.
  std::string make_attempt(int attempt, int num_workers) const;

 private:
  std::string path_;
};

}  // namespace hasten::launcher
