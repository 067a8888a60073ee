// See future_completer.h.
#include "comm/c10d/future_completer.h"

#include <unistd.h>

#include <utility>

#include "comm/connecting/serial_executor.h"

namespace hasten::comm {

FutureCompleter::FutureCompleter() : owner_(getpid()) {}

FutureCompleter::~FutureCompleter() {
  if (!thread_.joinable()) return;
  thread_.detach();
  if (getpid() != owner_) return;
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->work_arrived.notify_one();
}

void FutureCompleter::post(std::function<void()> job, std::chrono::milliseconds linger) {
  const std::lock_guard lock(queue_->mutex);
  if (!thread_.joinable()) thread_ = start_without_signals([queue = queue_] { serve(*queue); });
  queue_->jobs.push_back({std::move(job), Clock::now() + linger});
  if (queue_->jobs.size() == 1) queue_->work_arrived.notify_one();
}

void FutureCompleter::serve(Queue& queue) {
  std::unique_lock lock(queue.mutex);
  for (;;) {
    queue.work_arrived.wait(lock, [&] { return queue.stopping || !queue.jobs.empty(); });
    if (queue.jobs.empty()) return;
    if (!queue.stopping && Clock::now() < queue.jobs.front().begin) {
      queue.work_arrived.wait_until(lock, queue.jobs.front().begin, [&] { return queue.stopping; });
      continue;
    }
    Job job = std::move(queue.jobs.front());
    queue.jobs.pop_front();
    lock.unlock();
    job.run();
    job.run = nullptr;
    lock.lock();
  }
}

}  // namespace hasten::comm
