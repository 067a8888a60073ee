// Sink: one tracker of a follower on a thread of its own: reads the journal, hands records over, acknowledges, retries.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "hasten/tracking/follower/follower_options.h"

namespace hasten::tracking {

/// State that a follower shares with its sinks.
struct SinkContext {
  FollowerOptions options = {};
  RunInfo run = {};
  std::atomic<bool> closing = false;    ///< nothing more will be written
  std::atomic<bool> abandoned = false;  ///< stop at once
  mutable std::mutex mutex = {};
  std::condition_variable changed = {};

  void warn(const std::string& line) const {
    if (options.warn) options.warn(line);
  }
  /// Returns after the time, or when the follower is closed or abandoned; true unless abandoned.
  bool sleep(std::chrono::duration<double> time);
};

class Sink {
 public:
  Sink(std::shared_ptr<SinkContext> context, SinkConfig config);
  virtual ~Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  /// Runs until the end of the run has been passed on, the sink is parked, or the follower is abandoned.
  void run();
  SinkState state() const;
  bool is_over() const noexcept { return over_; }

 protected:
  /// Runs a round: passes on the present records and acknowledges them. Returns true if there was something. Sets
  /// done_.
  virtual bool advance() = 0;
  /// After a failure: gives up what is not acknowledged; the next advance() starts from there.
  virtual void reset() = 0;

  void acknowledge();
  bool is_for_me(const Record& record) const;

  const std::shared_ptr<SinkContext> context_;
  const SinkConfig config_;
  SinkState state_;  // of this thread; state() gives the last acknowledged
  bool progressed_ = false;

 private:
  void park(const std::string& reason);

  mutable std::mutex mutex_;
  SinkState shown_;
  std::atomic<bool> over_ = false;
};

/// Returns a sink over a Tracker of this process.
std::unique_ptr<Sink> make_tracker_sink(std::shared_ptr<SinkContext> context, SinkConfig config);
/// Returns a sink over a Python client; see bridge.h.
std::unique_ptr<Sink> make_bridge_sink(std::shared_ptr<SinkContext> context, SinkConfig config);

/// Returns the run that a journal's "start" record describes. `folder`: of the journal, where it names none.
RunInfo read_run_info(const Record& start, const std::filesystem::path& folder);

/// Returns the values of a "log" record.
Values values_of(const core::Value& map);

}  // namespace hasten::tracking
