// Board: one HTML page of runs, made from journals and TensorBoard event files, that needs no server and no network.
//
// It shows curves of several runs over each other, speed and memory of each rank, and images. It also shows settings
// with their differences, and notes on a time line. A page that is served requests updates every two seconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::tracking {

struct CurvePoint {
  double step = 0;
  double time_s = 0;
  double value = 0;
};
using Curve = std::vector<CurvePoint>;

/// Returns at most `most` points (at least 4): the smallest and the largest value of each bucket, and the first and
/// last point. So no spike is lost. Shorter curves stay as they are.
Curve reduce_curve(const Curve& curve, size_t most);

struct BoardRun {
  struct Item {
    std::string key = {};
    double step = 0;
    std::string bytes = {};  ///< a PNG, or a text
  };
  struct Note {
    double time_s = 0;
    std::string level = {};
    std::string text = {};
  };
  std::string name = {};
  double start_s = 0;
  /// "finished", "failed" …; "" if the run goes on or has ended without a word.
  std::string end = {};
  std::map<std::string, Curve> curves = {};
  /// By rank, then "step_ms", "samples_per_s" …; over time.
  std::map<int, std::map<std::string, Curve>> ranks = {};
  core::Value config = {};
  std::vector<Item> images = {};
  std::vector<Item> texts = {};
  std::vector<Note> notes = {};
};

/// Returns the runs in folders and below: each folder with a journal, and each other folder with event files.
/// Throws: DataError if there is none.
std::vector<BoardRun> read_runs(const std::vector<std::filesystem::path>& folders);

/// Returns the runs in the form of the page's script; `version` distinguishes states. `</` does not occur in it.
std::string board_data(const std::vector<BoardRun>& runs, int64_t version, bool live);

/// Returns the whole page.
std::string board_page(const std::string& data);

/// Total size of the files that read_runs reads: changes when there is news.
int64_t runs_version(const std::vector<std::filesystem::path>& folders);

/// Serves the page at http://address:port/ and calls `started` with that address, until `ends` returns true.
/// Blocks: until then. Throws: UsageError if the address cannot be used.
void serve_board(const std::vector<std::filesystem::path>& folders, const std::string& address, int port,
                 const std::function<void(const std::string&)>& started, const std::function<bool()>& ends);

}  // namespace hasten::tracking
