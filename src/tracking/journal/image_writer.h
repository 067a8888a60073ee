// ImageWriter: writes logged images as PNG files on a thread of its own, then their line in the journal. It writes
// embeddings, too.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hasten/tracking/journal/value.h"

namespace hasten::tracking {

struct ImageJob {
  ImageValues images = {};
  int64_t step = 0;
  double time_s = 0;
  core::Value kwargs = {};
  /// Set: writes other files, of `num_bytes` in memory, in the images' place and returns their record.
  std::function<core::Value(const std::filesystem::path& run_folder)> write = {};
  int64_t num_bytes = 0;
};

class ImageWriter {
 public:
  /// `write_line` gets the journal's line, `warn` what went wrong.
  ImageWriter(std::filesystem::path run_folder, int64_t most_bytes, std::function<void(std::string)> write_line,
              std::function<void(const std::string&)> warn);
  /// Writes what waits.
  ~ImageWriter();

  /// Takes a job; beyond the memory given, the oldest are dropped.
  void push(ImageJob job);
  /// Waits until everything has been written.
  void drain();

 private:
  void run();
  void write(const ImageJob& job);
  std::string file_name(const std::string& key, int64_t step, size_t index);

  const std::filesystem::path folder_;
  const int64_t most_bytes_;
  const std::function<void(std::string)> write_line_;
  const std::function<void(const std::string&)> warn_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<ImageJob, int64_t>> jobs_;
  int64_t num_bytes_ = 0;
  int64_t counter_ = 0;
  bool busy_ = false, ends_ = false, said_dropped_ = false;
  std::thread thread_;
};

}  // namespace hasten::tracking
