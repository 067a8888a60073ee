// Pool: the agent's threads. One of them, the leader, reads messages; the others run handlers.
//
// The thread that has read a call runs it itself, which saves a switch of threads, and another thread leads meanwhile.
// For handlers that are known to be short not even that: an idle thread, the deputy, polls every two milliseconds for
// unread messages. A handler that waits is replaced, so `num_threads` handlers run at a time.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace hasten::rpc {

struct PoolTask {
  std::function<void()> run;
  /// Ran in microseconds so far.
  bool is_short = false;
};

class Pool {
 public:
  struct Options {
    int num_threads = 16;
    int max_waiting = 256;
    /// Waits for messages and handles them.
    std::function<void()> serve;
    /// Lets `serve` return.
    std::function<void()> wake;
    /// Writes what the thread has queued.
    std::function<void()> flush;
    /// Prepares each thread.
    std::function<void()> enter;
  };

  explicit Pool(Options options);
  /// As stop().
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void start();
  /// Ends the threads after the tasks that run now; drops those that wait in the queue.
  void stop();
  void submit(PoolTask task);
  /// In a child of fork(): drops the threads, which the child does not have.
  void abandon() noexcept;
  /// Runs `wait` while another thread may take this one's place. Returns false without waiting if too many wait
  /// already.
  bool replaced_while(const std::function<void()>& wait);
  /// True in a thread of the pool that will run a short task next, so that writing can wait for more.
  bool has_short_next();

  int num_threads();
  int num_waiting();
  int num_running();
  size_t queue_length();

 private:
  void work();
  void lead(std::unique_lock<std::mutex>& lock);
  void run_one(std::unique_lock<std::mutex>& lock);
  void provide(bool leader, bool runner);
  void rest(std::unique_lock<std::mutex>& lock);

  Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PoolTask> queue_;
  std::vector<std::thread> threads_;
  int idle_ = 0, running_ = 0, waiting_ = 0;
  bool has_leader_ = false, has_deputy_ = false, stopping_ = false;
};

/// Runs tasks one at a time, in their order, in a pool.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  explicit Strand(Pool& pool) : pool_(pool) {}
  void submit(PoolTask task);
  size_t length();

 private:
  void run_next();
  Pool& pool_;
  std::mutex mutex_;
  std::deque<PoolTask> queue_;
  bool active_ = false;
};

}  // namespace hasten::rpc
