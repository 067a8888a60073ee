// FutureCompleter: a thread that carries operations out for callers that wait for a future instead of the operation.
//
// A future of libtorch's cannot carry out anything when it is waited for. Jobs run in their order, each not before its
// time, so that a caller that comes by itself needs no switch of threads.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace hasten::comm {

class FutureCompleter {
 public:
  FutureCompleter();
  /// What has been posted still runs, without a wait for it: a job may need a lock of the caller's, as Python's.
  ~FutureCompleter();
  FutureCompleter(const FutureCompleter&) = delete;
  FutureCompleter& operator=(const FutureCompleter&) = delete;

  /// Runs `job` in the thread once `linger` has passed. The first call starts the thread.
  void post(std::function<void()> job, std::chrono::milliseconds linger);

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    std::function<void()> run;
    Clock::time_point begin;
  };
  /// The thread's part, which it keeps: the last owner of the completer may be a job.
  struct Queue {
    std::mutex mutex;
    std::condition_variable work_arrived;
    std::deque<Job> jobs;
    bool stopping = false;
  };
  static void serve(Queue& queue);

  const pid_t owner_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;
};

}  // namespace hasten::comm
