// A progress bar in the manner of tqdm, for one loop.
//
// On a terminal it is one line, redrawn in place at most every tenth of a second. Anywhere else (a log file, a pipe, a
// job's output) it is one plain line when the loop is done. So a log has one line per epoch. The text of the line is a
// pure function of the state (format_progress), apart from when and where it is drawn. It does not depend on ranks:
// `accelerator.progress(total)` is enabled on each machine's main process. Curves and files of metrics are the
// trackers' work.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace hasten::tracking {

struct ProgressOptions {
  /// Text in front: "epoch 0".
  std::string description = {};
  /// The unit of the rate: "42.1 it/s".
  std::string unit = "it";
  /// How far the loop is already, after a resume. The rate counts what comes after it.
  int64_t initial = 0;
  /// false: the bar is gone once it has finished; for bars inside others.
  bool leave = true;
  /// Weight of the time since the last redraw in the rate: 0 is the mean since the start, 1 the last interval (tqdm's).
  double smoothing = 0.3;
  /// The bar of the loop around this one: this bar is drawn in the line below it. Borrowed, must outlive this one.
  class Progress* below = nullptr;
  /// false: nothing is written and `advance` costs nothing; for the other ranks.
  bool enabled = true;
  /// Borrowed, must outlive the bar. Standard error, so that redirected results stay free of it.
  std::FILE* output = stderr;
  /// Least time between two redraws.
  double redraw_interval_s = 0.1;
  /// Seconds since any fixed moment. Empty: the steady clock; tests hand in their own.
  std::function<double()> clock_s = {};
};

/// The facts of a line.
struct ProgressState {
  std::string description = {};
  std::string unit = "it";
  /// Below 0 counts as 0.
  int64_t done = 0;
  /// Unset: unknown.
  std::optional<int64_t> total = {};
  double elapsed_s = 0;
  /// Not counted in the mean rate.
  int64_t initial = 0;
  /// Per second. Unset: the mean since the start.
  std::optional<double> rate = {};
  /// Free text at the end of the line: "loss 0.43".
  std::string postfix = {};
};

/// Returns the line for `state`, without line end: "epoch 0: 45%|===> | 422/938 [00:10<00:12, 42.1 it/s, loss 0.43]".
/// The times are elapsed < remaining, from the rate. The bar is as wide as fits into `columns`, and the text is cut
/// there (lengths count UTF-8 characters). Without `columns`, or without a known total, there is no bar and no
/// percentage. A rate below one a second is written as seconds per unit; control characters become blanks.
std::string format_progress(const ProgressState& state, std::optional<int> columns = {});

/// The bar of a loop: made before it, advanced in it, finished after it. Bars of nested loops stand in lines below each
/// other (ProgressOptions::below). Others take turns on a terminal. Used from one thread.
class Progress {
 public:
  /// Draws the bar at 0. `total`: how often the loop runs; std::nullopt if it is unknown.
  explicit Progress(std::optional<int64_t> total, ProgressOptions options = {});

  /// Ends as finish() does. An exception that passes leaves a whole line behind, with the progress of the loop.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Counts `n` more and redraws if it is time. An empty `postfix` leaves the one before. Nothing after
  /// finish(). Blocks: while the output does. Throws: nothing but std::bad_alloc; a failed
  /// write is ignored.
  void advance(int64_t n = 1, std::string_view postfix = {});

  /// Replaces the text behind the bar, and shows it at the next redraw. Throws: as advance.
  void set_postfix(std::string_view postfix) { state_.postfix = postfix; }

  /// Draws the last state and ends the line; the second call does nothing.
  /// Blocks: while the output does. Throws: as advance.
  void finish();

 private:
  void draw(bool last = false);
  void measure_rate();
  void write_line(const std::string& line);

  ProgressOptions options_;
  ProgressState state_;
  bool terminal_ = false;
  bool finished_ = false;
  double start_s_ = 0;
  double drawn_s_ = 0;
  int depth_ = 0;
  int64_t measured_done_ = 0;
  double measured_s_ = 0, mean_done_ = 0, mean_s_ = 0;  // weighted means, of a redraw's steps and time
};

}  // namespace hasten::tracking
