// The queue and its threads; see worker_pool.h.
#include "hasten/data/worker_pool.h"

#include <utility>

namespace hasten::data {

WorkerPool::WorkerPool(size_t num_workers) {
  threads_.reserve(num_workers);
  for (size_t worker = 0; worker < num_workers; ++worker) {
    threads_.emplace_back([this, worker] { work(worker); });
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  queued_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WorkerPool::submit(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  queued_.notify_one();
}

void WorkerPool::drop_queued() {
  std::deque<Job> dropped;  // destroyed after the lock: jobs own batches
  const std::lock_guard lock(mutex_);
  dropped.swap(jobs_);
}

void WorkerPool::quiesce() {
  drop_queued();
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return running_ == 0; });
}

bool WorkerPool::wait(const std::function<bool()>& ready, std::optional<std::chrono::milliseconds> timeout) {
  std::unique_lock lock(mutex_);
  if (timeout) return finished_.wait_for(lock, *timeout, ready);
  finished_.wait(lock, ready);
  return true;
}

void WorkerPool::finish(const std::function<void()>& finish) {
  {
    const std::lock_guard lock(mutex_);
    finish();
  }
  finished_.notify_one();
}

void WorkerPool::work(size_t worker) {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      ++running_;
    }
    job(worker);
    job = nullptr;
    bool idle = false;
    {
      const std::lock_guard lock(mutex_);
      idle = --running_ == 0;
    }
    if (idle) finished_.notify_one();
  }
}

}  // namespace hasten::data
