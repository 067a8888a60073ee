// Log lines that carry the rank, from one logger per subject.
//
// spdlog does the work behind this header (its fmt cannot be compiled beside libtorch's, so no other header may include
// it). A logger's constructor takes its rank, which is never a global. `state` makes loggers for a process.
// `main_process_only` and `in_order` are those of Accelerate's get_logger.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hasten/core/env.h"
#include "hasten/core/text.h"

namespace hasten {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kCritical, kOff };

/// HASTEN_LOG_LEVEL, else ACCELERATE_LOG_LEVEL, else `fallback`; trace debug info warning error critical off.
/// Throws: UsageError for another word.
LogLevel log_level(const Environment& environment, LogLevel fallback = LogLevel::kWarning);

/// The writing rank. In a world of one the lines carry no rank.
struct LogIdentity {
  int rank = 0;
  int world_size = 1;
  /// Waits for all ranks (collective); needed by `in_order` lines only.
  std::function<void()> barrier = {};
};

struct LogOptions {
  /// Only rank 0 writes the line; false: every rank does. Accelerate's default.
  bool main_process_only = true;
  /// Every rank writes, one after the other in rank order. Collective when set: every rank must call.
  bool in_order = false;
};

/// Writes lines "2026-01-31 12:00:00.123 warning [name] rank 1/4: text" to standard error. A world of one has no rank;
/// on a terminal the level is in colour. A value handle; safe to use from several threads.
class Logger {
 public:
  /// Level from the environment (log_level).
  explicit Logger(std::string name, LogIdentity identity = {}, std::optional<LogLevel> level = {});

  void trace(std::string_view line, LogOptions options = {}) const { log(LogLevel::kTrace, line, options); }
  void debug(std::string_view line, LogOptions options = {}) const { log(LogLevel::kDebug, line, options); }
  void info(std::string_view line, LogOptions options = {}) const { log(LogLevel::kInfo, line, options); }
  void warning(std::string_view line, LogOptions options = {}) const { log(LogLevel::kWarning, line, options); }
  void error(std::string_view line, LogOptions options = {}) const { log(LogLevel::kError, line, options); }
  void critical(std::string_view line, LogOptions options = {}) const { log(LogLevel::kCritical, line, options); }

  /// As `warning`, but each distinct text once in this logger's life.
  void warning_once(const std::string& line, LogOptions options = {}) const;

  /// Writes the line if `level` is enabled.
  /// Collective: only with options.in_order (every rank, same order). Blocks: only then. Throws: UsageError if in_order
  /// is set without a barrier in a world of several.
  void log(LogLevel level, std::string_view line, LogOptions options = {}) const;

  bool enabled(LogLevel level) const;
  void set_level(LogLevel level) const;

  /// Hands each line from warning on that this logger writes to `observer` as well, on the calling thread.
  void on_warning(std::function<void(LogLevel level, std::string_view line)> observer);

  /// Sends the lines of this logger to `sink` instead of standard error, without a time stamp (tests).
  void redirect(std::function<void(std::string_view line)> sink);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten
