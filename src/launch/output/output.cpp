// See output.h.
#include "launch/output/output.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/launch/output/stream_choice.h"

namespace hasten::launcher {
namespace {

constexpr int kOut = 1;
constexpr int kErr = 2;

void require_worker(const std::string& name, int local_rank, int num_workers) {
  if (local_rank < num_workers) return;
  throw UsageError({"launch"}, name, " names local rank ", local_rank, ", but this machine has ",
                   count_text(num_workers, "worker"), ", 0 to ", num_workers - 1, ".");
}

// The streams that `value` gives for one worker; every part of it is checked.
int streams_for(const std::string& name, const std::string& value, const WorkerPlace& place) {
  const auto choice = read_stream_choice(value);
  if (!choice) {
    throw UsageError({"launch"}, name, " '", value,
                     "' is none; expected 0 (no stream), 1 (output), 2 (error), 3 (both), or one of them for each "
                     "local rank, like 0:3,1:2.");
  }
  for (const auto& [local_rank, streams] : choice->by_local_rank)
    require_worker(name, local_rank, place.local_world_size);
  return choice->of(place.local_rank);
}

bool passes(const std::vector<int>& filter, const WorkerPlace& place) {
  for (const int local_rank : filter) require_worker("local_ranks_filter", local_rank, place.local_world_size);
  return filter.empty() || std::find(filter.begin(), filter.end(), place.local_rank) != filter.end();
}

// Neighbours in rank differ; no white, no black.
std::string rank_prefix(int rank, bool colour) {
  const std::string name = text("[rank ", rank, "]");
  return colour ? text("\x1b[3", 1 + rank % 6, "m", name, "\x1b[0m ") : name + " ";
}

bool has_file_system(const OutputOptions& options) {
  return options.log_dir != "/dev/null";
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    throw UsageError({"launch"}, "cannot make the folder '", path, "' for log files: ", error.message(),
                     ". Give another with --log_dir.");
  }
}

}  // namespace

OutputPlan plan_output(const OutputOptions& options, const WorkerPlace& place, const std::string& folder) {
  const int redirected = streams_for("redirects", options.redirects, place);
  const int teed = streams_for("tee", options.tee, place);
  const bool passed = passes(options.local_ranks_filter, place);
  const std::string of_role = text("[", options.role, place.local_rank, "]:");
  const auto plan = [&](int stream, const char* name, const std::vector<std::string>& words, bool colour) {
    StreamPlan result;
    const bool in_file = ((redirected | teed) & stream) != 0 && has_file_system(options);
    const bool tee = (teed & stream) != 0;
    if (in_file) result.file = text(folder, "/", place.local_rank, "/", name);
    result.shown = passed && (!in_file || tee);
    if (options.prefix_ranks) {
      result.prefix = rank_prefix(place.rank, colour);
    } else if (tee) {
      result.prefix = of_role;
    }
    if (in_file && tee && !words.empty()) {
      result.words = words;
      result.words_file = text(folder, "/filtered_", name);
      result.words_prefix = of_role;
    }
    return result;
  };
  return {plan(kOut, "stdout.log", options.duplicate_stdout_filters, options.colour_out),
          plan(kErr, "stderr.log", options.duplicate_stderr_filters, options.colour_err)};
}

bool wants_files(const OutputOptions& options) {
  const auto asks = [](const std::string& streams) { return !streams.empty() && streams != "0"; };
  return has_file_system(options) && (!options.log_dir.empty() || asks(options.redirects) || asks(options.tee));
}

LogFolders::LogFolders(const std::string& log_dir, const std::string& run_id) {
  make_folder(log_dir);
  // A run id may be anything, a path's name may not.
  std::string name = run_id;
  std::replace(name.begin(), name.end(), '/', '_');
  path_ = std::filesystem::absolute(log_dir).lexically_normal() / (name + "_XXXXXX");
  if (mkdtemp(path_.data()) == nullptr) {
    throw UsageError({"launch"}, "cannot make a folder like '", path_, "' for log files: ", std::strerror(errno),
                     ". Give another with --log_dir.");
  }
}

std::string LogFolders::make_attempt(int attempt, int num_workers) const {
  const std::string folder = text(path_, "/attempt_", attempt);
  for (int local_rank = 0; local_rank < num_workers; ++local_rank) make_folder(text(folder, "/", local_rank));
  return folder;
}

}  // namespace hasten::launcher
