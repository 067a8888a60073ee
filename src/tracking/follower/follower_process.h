// FollowerProcess: the command that follows this process's journal, its words for the user, and its replacement if it
// ends.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tracking/follower/child.h"

namespace hasten::tracking {

/// Returns `given`, else HASTEN_TRACK_PROGRAM, else `hasten` beside this program or in ../bin, else on PATH. Empty if
/// there is none. Throws: UsageError if either of the first two is no program.
std::filesystem::path follower_program(const std::filesystem::path& given, const Environment& environment);

struct FollowerProcessOptions {
  std::filesystem::path program = {};
  std::filesystem::path journal = {};
  double drain_timeout_s = 30;
  Environment environment = {};
  std::function<void(const std::string&)> warn = {};
};

class FollowerProcess {
 public:
  /// Starts it. Throws: UsageError.
  explicit FollowerProcess(FollowerProcessOptions options);

  /// Hands its lines on, and starts it again if it has died, three times at most.
  void look();
  /// Closes its input, so that it drains and ends; waits for it. Returns true if it got everything.
  bool finish(std::chrono::milliseconds timeout);
  pid_t pid() const noexcept { return child_->pid(); }

 private:
  void start();
  void hand_on(std::chrono::milliseconds timeout);

  const FollowerProcessOptions options_;
  std::unique_ptr<Child> child_;
  int starts_ = 0;
  bool given_up_ = false;
};

}  // namespace hasten::tracking
