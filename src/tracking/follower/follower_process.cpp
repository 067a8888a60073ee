// See follower_process.h.
#include "tracking/follower/follower_process.h"

#include "hasten/core/error.h"
#include "hasten/core/path_search.h"
#include "hasten/core/shell.h"

namespace hasten::tracking {
namespace {

constexpr int kMostStarts = 4;
constexpr int kNotAll = 3;  // exit code of `hasten track follow`

}  // namespace

std::filesystem::path follower_program(const std::filesystem::path& given, const Environment& environment) {
  const auto require = [&](const std::string& program, const char* from) {
    const auto found = core::find_on_path(program, environment);
    if (found.empty()) {
      throw UsageError(Origin{"tracking"}, from, " names ", program,
                       ", which is no program; expected the hasten command. Correct or unset it.");
    }
    return found;
  };
  if (!given.empty()) return require(given.string(), "AcceleratorOptions.tracking.program");
  if (const auto named = environment.text("HASTEN_TRACK_PROGRAM")) return require(*named, "HASTEN_TRACK_PROGRAM");
  std::error_code failed;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
  if (!failed) {
    for (const auto& beside : {self / "hasten", self.parent_path() / "bin" / "hasten"}) {
      if (std::filesystem::is_regular_file(beside, failed)) return beside;
    }
  }
  return core::find_on_path("hasten", environment);
}

FollowerProcess::FollowerProcess(FollowerProcessOptions options) : options_(std::move(options)) {
  start();
}

void FollowerProcess::start() {
  ++starts_;
  child_ = std::make_unique<Child>(
      ChildOptions{.arguments = {options_.program.string(), "track", "follow", options_.journal.string(),
                                 "--drain_timeout", text(options_.drain_timeout_s)},
                   .environment = options_.environment,
                   .error_file = options_.journal.parent_path() / "follower.log"});
}

void FollowerProcess::hand_on(std::chrono::milliseconds timeout) {
  for (const std::string& line : child_->read_lines(timeout)) options_.warn(line);
}

void FollowerProcess::look() {
  if (given_up_) return;
  hand_on({});
  const auto code = child_->wait();
  if (!code) return;
  hand_on({});
  if (*code == 0 || *code == kNotAll) return;  // all trackers have ended or are parked
  if (starts_ >= kMostStarts) {
    given_up_ = true;
    options_.warn(text("the process that feeds the trackers ended ", starts_, " times, the last time with exit code ",
                       *code, ". The journal goes on; afterwards run: hasten track recover ",
                       shell_word(options_.journal.parent_path().string())));
    return;
  }
  try {
    start();
  } catch (const UsageError& error) {
    given_up_ = true;
    options_.warn(error.what());
  }
}

bool FollowerProcess::finish(std::chrono::milliseconds timeout) {
  if (given_up_) return false;
  // It ends by itself once all trackers have the end of the run.
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!child_->output_ended() && std::chrono::steady_clock::now() < until) hand_on(std::chrono::milliseconds(100));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  const auto code = child_->wait(std::max(left, std::chrono::milliseconds(10)));
  child_->close_input();  // after which it has its drain timeout left
  return code && *code == 0;
}

}  // namespace hasten::tracking
