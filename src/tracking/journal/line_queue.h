// LineQueue: writes log lines to a journal in order, and holds them back while a number in one is still being computed.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hasten/tracking/journal/journal.h"
#include "hasten/tracking/journal/value.h"

namespace hasten::tracking {

/// The contents of a "log" record.
struct LogLine {
  double time_s = 0;
  int64_t step = 0;
  Values values = {};
  core::Value kwargs = {};             ///< null: none
  std::vector<std::string> only = {};  ///< trackers that take it; empty: all
};

/// Appends the record and '\n'. Waits for pending numbers.
void append_log_line(std::string& out, const LogLine& line);

class LineQueue {
 public:
  explicit LineQueue(std::shared_ptr<Journal> journal) : journal_(std::move(journal)) {}

  /// Writes the line, or keeps it if a number in it, or a line before it, is not ready. Beyond 64 waiting lines it
  /// waits for the oldest. Blocks: for one write, or then.
  void push(LogLine line);
  /// Writes `line`, a whole record with '\n', behind all before.
  void push(std::string line);
  /// Writes what has become ready; with `all`, waits for the rest.
  void drain(bool all = false);
  bool empty() const;

 private:
  struct Line {
    LogLine line = {};
    std::string text = {};  // in place of line
  };
  void write_front();
  bool front_is_ready() const;

  const std::shared_ptr<Journal> journal_;
  mutable std::mutex mutex_;
  std::deque<Line> kept_;
  std::string buffer_;
};

}  // namespace hasten::tracking
