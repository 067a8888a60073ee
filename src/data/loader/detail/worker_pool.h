// The threads that fetch batches ahead of the training loop.
//
// A pool lasts as long as its loader. Jobs without a waiting loop (a loop left by break) are dropped before they start.
// Passes share it, and one that ends drops its own jobs only. epoch_pipeline.h has the content of a job, and the order
// of results.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace hasten::data {

class WorkerPool {
 public:
  /// Gets the number of the worker that runs it, 0 … num_workers - 1. Must not throw.
  using Job = std::function<void(size_t worker)>;

  /// Throws: UsageError if the system starts no more threads; those that were
  /// started have ended then.
  explicit WorkerPool(size_t num_workers);
  /// Drops the jobs that have not started and waits for those that have.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Queues a job of `owner`, an address that identifies its pass. Jobs start in this order.
  void submit(const void* owner, Job job);

  /// Drops the jobs that have not started: those of `owner`, or everybody's without one.
  void drop_queued(const void* owner = nullptr) noexcept;

  /// Drops the jobs that have not started and waits for those that have.
  /// Blocks: for running jobs.
  void quiesce();

  /// Waits until `ready`, which is called after each finished job and may read what finished jobs have written. Returns
  /// false if `timeout` passes first.
  /// Blocks: yes.
  bool wait(const std::function<bool()>& ready, std::optional<std::chrono::milliseconds> timeout);

  /// Runs `finish` so that wait() sees its writes: a job calls it when its result is complete.
  void finish(const std::function<void()>& finish);

 private:
  struct Queued {
    const void* owner;
    Job job;
  };
  void work(size_t worker);
  void stop() noexcept;

  std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable finished_;
  std::list<Queued> jobs_;
  bool stopping_ = false;
  size_t running_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace hasten::data
