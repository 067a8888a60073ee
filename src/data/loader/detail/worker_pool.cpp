// The queue and its threads; see worker_pool.h.
#include "data/loader/detail/worker_pool.h"

#include <system_error>
#include <utility>

#include "data/origin.h"
#include "hasten/core/error.h"
#include "hasten/process/device.h"

namespace hasten::data {

WorkerPool::WorkerPool(size_t num_workers) {
  threads_.reserve(num_workers);
  const auto set_device = process::device_for_threads();
  for (size_t worker = 0; worker < num_workers; ++worker) {
    try {
      threads_.emplace_back([this, worker, set_device] {
        set_device();
        work(worker);
      });
    } catch (const std::system_error& error) {
      stop();
      throw UsageError(kOrigin, "of workers = ", num_workers, " the system started ", worker,
                       " threads: ", error.what(), ". Give fewer workers, or raise the limit on threads or memory.");
    }
  }
}

WorkerPool::~WorkerPool() {
  stop();
}

void WorkerPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  queued_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WorkerPool::submit(const void* owner, Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({owner, std::move(job)});
  }
  queued_.notify_one();
}

void WorkerPool::drop_queued(const void* owner) noexcept {
  std::list<Queued> dropped;  // destroyed after the lock: jobs own batches
  const std::lock_guard lock(mutex_);
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    const auto job = next++;
    if (!owner || job->owner == owner) dropped.splice(dropped.end(), jobs_, job);
  }
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
      job = std::move(jobs_.front().job);
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
