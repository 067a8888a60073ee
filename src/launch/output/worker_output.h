// The worker shim's side of a worker's output. It has taps on the worker's streams, and passes their bytes to the log
// file, the launcher's stream, and the tail for the report.
//
// A tap is a pty where the launcher's stream is a terminal, else a pipe. Standard output that only passes through to a
// pipe or a file is not tapped: the worker writes there itself. See
// docs/decisions/0009-taps-are-in-the-keepers.md.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/output/line_filter.h"
#include "launch/output/line_prefixer.h"
#include "launch/output/line_tail.h"
#include "launch/output/log_file.h"
#include "launch/output/output.h"
#include "launch/output/output_writer.h"

namespace hasten::launcher {

/// The turns of all worker shims at the launcher's output and error.
struct OutputTurns {
  std::shared_ptr<OutputLock> out = {};
  std::shared_ptr<OutputLock> err = {};
};

class WorkerOutput {
 public:
  using Clock = std::chrono::steady_clock;
  using Notice = std::function<void(const std::string& line)>;

  struct Options {
    std::string spill_folder = "/tmp";
    OutputTurns turns = {};
    Notice notice = [](const std::string&) {};  ///< takes messages for the user
  };

  /// Opens taps and files, before the worker is forked.
  WorkerOutput(const OutputPlan& plan, Options options);

  /// 0, or why the taps could not be opened (errno).
  int error() const { return error_; }

  /// In the worker's process: its standard streams become the taps; all else is closed.
  void connect_worker();
  /// In the worker shim after the fork.
  void close_worker_ends();
  /// Descriptors that the worker shim must leave open.
  std::vector<int> descriptors() const;

  /// Adds what poll is to wait for.
  void add_sources(std::vector<pollfd>& sources) const;
  /// When `pump` is to be called though nothing has come.
  std::optional<Clock::time_point> deadline() const;
  /// Moves what there is. Blocks: no, but for the disk of a log file.
  void pump();

  /// The worker's group has gone: reads the rest of the taps. False if there is no room for it yet.
  bool finish();
  /// Returns true if all was written.
  bool written() const;
  /// When something was last written.
  Clock::time_point last_progress() const { return last_progress_; }

  std::string error_tail() const { return tail_.lines(); }

  /// Gives the worker's terminals the size of the launcher's.
  void resize() const;

 private:
  struct Stream {
    int target = -1;   // the worker's and the launcher's descriptor: 1 or 2
    int reading = -1;  // the worker shim's end of the tap
    int worker = -1;   // the worker's end, or what it gets instead of one
    LogFile file = {};
    LogFile picked_file = {};  // that of the filter's lines
    LineFilter filter{};
    bool shown = false;
    bool is_error = false;
    LinePrefixer prefixer{""};
    OutputWriter* writer = nullptr;
    std::string held = {};  // no room for it in the writer
    Clock::time_point flush_at = {};
  };

  void open(const StreamPlan& plan, int target);
  void open_tap(Stream& stream, bool terminal);
  void open_writers();
  enum class Read { kBytes, kNothing, kEnd };
  Read read_from(Stream& stream);
  void end(Stream& stream);
  void show(Stream& stream, std::string bytes);
  void retry_held();

  Options options_;
  int error_ = 0;
  int progress_ = -1;  // an eventfd of the writers
  std::vector<Stream> streams_;
  std::vector<std::unique_ptr<OutputWriter>> writers_;
  LineTail tail_;
  Clock::time_point last_progress_ = Clock::now();
};

}  // namespace hasten::launcher
