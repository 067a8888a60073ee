// ActiveRun: what Trackers holds between init and finish: journal, queue, image writer, followers, and the thread that
// checks them and writes this rank's metrics.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hasten/core/log.h"
#include "hasten/tracking/follower/follower.h"
#include "hasten/tracking/follower/tracking_options.h"
#include "hasten/tracking/journal/journal.h"
#include "hasten/tracking/journal/value.h"
#include "tracking/follower/follower_process.h"
#include "tracking/journal/image_writer.h"
#include "tracking/journal/line_queue.h"

namespace hasten::tracking {

/// Seconds since 1970.
double unix_time_s();

class ActiveRun {
 public:
  ActiveRun(const TrackingOptions& options, const std::filesystem::path& path, Logger logger);
  /// Stops the thread and writes what waits. Blocks: on the disk.
  ~ActiveRun();

  /// Starts the thread.
  void look_after();
  void stop();
  /// Logs a warning, and notes it in the journal unless that has ended.
  void warn(const std::string& line);
  void write_note(const std::string& words, const std::string& level);
  void wake() { changed_.notify_all(); }
  void add_metrics(std::function<Values()> read);

 private:
  Logger logger_;
  const double interval_s_;
  const bool per_rank_;

 public:
  const std::shared_ptr<Journal> journal;
  LineQueue queue;
  ImageWriter images;
  std::unique_ptr<FollowerProcess> process;
  /// Followers on threads of this process.
  std::vector<std::unique_ptr<Follower>> own;
  /// True once the "finish" record, the last one, has been written.
  std::atomic<bool> ended = false;
  std::atomic<int64_t> num_steps = 0, num_samples = 0, wait_ns = 0;

 private:
  void run();
  void warn_of_lost_lines();
  void write_metrics();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false, said_lost_ = false;
  std::vector<std::function<Values()>> sources_;
  std::chrono::steady_clock::time_point counted_at_ = std::chrono::steady_clock::now();
  std::thread thread_;
};

}  // namespace hasten::tracking
