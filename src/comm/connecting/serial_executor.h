// SerialExecutor: a thread that runs jobs one after the other. It starts with the first job.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace hasten::comm {

class SerialExecutor {
 public:
  SerialExecutor() = default;
  /// Runs what has been submitted.
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// The future has what the job throws.
  std::future<void> submit(std::function<void()> job);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

/// Returns a thread that leaves signals to the program's own threads.
std::thread start_without_signals(std::function<void()> body);

}  // namespace hasten::comm
