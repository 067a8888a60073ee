// FailureReporter: the report of a process of a run that an uncaught exception ends.
//
// Without them the others learn only that a connection closed. The words go to three places. The store has them, so
// that the survivors' errors name this rank and its reason. The launcher's error file has them in torchrun's format.
// Standard error shows them, once. Process installs this, also in a world of one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "hasten/comm/group/group.h"
#include "hasten/comm/store/store.h"
#include "hasten/process/rank_info.h"

namespace hasten::process {

/// The facts for the report; owned by the Process.
struct FailureReporter {
  /// As far as it is known: a process may fail while it finds out.
  RankInfo identity = {};
  /// TORCHELASTIC_ERROR_FILE; empty: none is written.
  std::string error_file = {};
  /// Absent until the process is connected.
  std::optional<comm::Store> store = {};
  std::optional<comm::Group> group = {};
};

/// From now on, an uncaught exception on any thread has these effects, at the latest after 8 s. It posts its what() and
/// closes the group. It writes the error file ({"message": {"message", "extraInfo": {"timestamp": seconds since 1970,
/// "py_callstack"}}}). It prints one line, and ends the process with exit code 1 (2 for a UsageError) instead of a core
/// dump. A process that serves the store waits, 5 s at most, until the others have read it. std::terminate for any
/// other reason goes to the handler that was there before. `reporter` is held weakly: when its owner is gone, nothing
/// is posted. Of several the last whose owner is there gives rank and error file, and the groups of all get the words.
void install_terminate_handler(const std::shared_ptr<const FailureReporter>& reporter);

/// Returns true if the owner of a reporter that was installed is still there.
bool has_reporter();

/// Returns the error file's text.
std::string error_file_text(const std::string& message, int64_t seconds_since_1970);

}  // namespace hasten::process
