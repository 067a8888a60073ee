// A run of a program under hasten verify: a child that is `hasten launch`, and the records that its ranks leave.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hasten::cli {

/// HASTEN_VERIFY of a run.
struct VerifyRunOptions {
  int num_processes = 1;
  int num_shares = 1;
  bool whole = false;
  int64_t num_steps = 20;
  int64_t seed = 0;
  /// Options of `hasten launch` beside the number of processes.
  std::vector<std::string> launch_options = {};
};

struct VerifyRunResult {
  int exit_code = 0;
  /// The lines of all ranks, one rank after the other.
  std::string record = {};
};

/// A folder that goes with its object.
class VerifyFolder {
 public:
  /// Throws: UsageError if it cannot be made.
  VerifyFolder();
  ~VerifyFolder();
  VerifyFolder(const VerifyFolder&) = delete;
  VerifyFolder& operator=(const VerifyFolder&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs `program` (with its arguments) to its end. Its output is this command's. The launcher ends with this process.
/// Blocks: until it has ended. Throws: UsageError if it cannot be started.
VerifyRunResult run_recorded(const VerifyFolder& folder, const std::string& name, const VerifyRunOptions& options,
                             const std::vector<std::string>& program);

}  // namespace hasten::cli
