// See pool.h.
#include "rpc/pool.h"

#include <utility>

#include "hasten/process/device.h"
#include "rpc/thread_state.h"

namespace hasten::rpc {
namespace {
constexpr std::chrono::milliseconds kDeputyLooks{2};

// A new thread begins with device 0, whatever the one that makes it has.
std::function<void()> on_this_device(std::function<void()> work) {
  return [set_device = process::device_for_threads(), work = std::move(work)] {
    set_device();
    work();
  };
}
}  // namespace

Pool::Pool(Options options) : options_(std::move(options)) {}

Pool::~Pool() {
  stop();
}

void Pool::start() {
  const std::lock_guard lock(mutex_);
  threads_.emplace_back(on_this_device([this] { work(); }));
}

void Pool::stop() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    threads.swap(threads_);
  }
  options_.wake();
  for (auto& thread : threads) thread.join();
  const std::lock_guard lock(mutex_);
  queue_.clear();
}

void Pool::abandon() noexcept {
  stopping_ = true;
  for (auto& thread : threads_) thread.detach();
  threads_.clear();
}

void Pool::submit(PoolTask task) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  const bool by_leader = detail::current_thread().leading;
  queue_.push_back(std::move(task));
  // The leader runs it itself when it has read all.
  if (!by_leader) provide(false, true);
}

// With the lock: makes a thread come that leads, or that runs tasks.
void Pool::provide(bool leader, bool runner) {
  if (stopping_) return;
  const bool requested = (leader && !has_leader_) || (runner && !queue_.empty() && running_ < options_.num_threads);
  if (!requested) return;
  if (idle_ > 0) {
    changed_.notify_one();
    return;
  }
  const auto most = static_cast<size_t>(options_.num_threads + waiting_ + 1);
  if (threads_.size() < most) threads_.emplace_back(on_this_device([this] { work(); }));
}

void Pool::work() {
  auto& current = detail::current_thread();
  current.in_pool = true;
  options_.enter();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!has_leader_) {
      lead(lock);
      // It runs the calls that it has read. Another leads meanwhile, unless all waiting calls are short.
      while (!stopping_ && !queue_.empty() && running_ < options_.num_threads) {
        if (queue_.front().is_short && !has_deputy_) provide(true, false);
        run_one(lock);
        if (has_leader_) break;
      }
    } else if (!queue_.empty() && running_ < options_.num_threads) {
      run_one(lock);
    } else {
      rest(lock);
    }
  }
}

void Pool::lead(std::unique_lock<std::mutex>& lock) {
  has_leader_ = true;
  provide(false, true);
  lock.unlock();
  options_.flush();
  detail::current_thread().leading = true;
  options_.serve();
  detail::current_thread().leading = false;
  lock.lock();
  has_leader_ = false;
}

void Pool::run_one(std::unique_lock<std::mutex>& lock) {
  PoolTask task = std::move(queue_.front());
  queue_.pop_front();
  ++running_;
  if (!task.is_short) provide(true, true);
  lock.unlock();
  task.run();
  task.run = nullptr;
  if (!detail::current_thread().unflushed.empty() && !has_short_next()) options_.flush();
  lock.lock();
  --running_;
}

void Pool::rest(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  options_.flush();
  lock.lock();
  if (stopping_ || !has_leader_ || (!queue_.empty() && running_ < options_.num_threads)) return;
  ++idle_;
  if (has_deputy_) {
    changed_.wait(lock);
  } else {
    // After some quiet polls it sleeps for good: an agent with nothing to do never wakes.
    has_deputy_ = true;
    for (int quiet = 0; quiet < 16 && !stopping_; ++quiet) {
      if (changed_.wait_for(lock, kDeputyLooks) == std::cv_status::no_timeout) break;
      if (!has_leader_ || (!queue_.empty() && running_ < options_.num_threads)) break;
    }
    has_deputy_ = false;
    const bool quiet = !stopping_ && has_leader_ && queue_.empty();
    if (quiet) changed_.wait(lock);
  }
  --idle_;
}

bool Pool::replaced_while(const std::function<void()>& wait) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_ >= options_.max_waiting) return false;
    ++waiting_;
    --running_;
    provide(true, true);
  }
  wait();
  const std::lock_guard lock(mutex_);
  --waiting_;
  ++running_;
  return true;
}

bool Pool::has_short_next() {
  if (!detail::current_thread().in_pool) return false;
  const std::lock_guard lock(mutex_);
  return !queue_.empty() && queue_.front().is_short;
}

int Pool::num_threads() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(threads_.size());
}
int Pool::num_waiting() {
  const std::lock_guard lock(mutex_);
  return waiting_;
}
int Pool::num_running() {
  const std::lock_guard lock(mutex_);
  return running_;
}
size_t Pool::queue_length() {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

void Strand::submit(PoolTask task) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
    if (std::exchange(active_, true)) return;
  }
  pool_.submit({[self = shared_from_this()] { self->run_next(); }, false});
}

void Strand::run_next() {
  std::unique_lock lock(mutex_);
  PoolTask task = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  task.run();
  lock.lock();
  if (queue_.empty()) {
    active_ = false;
    return;
  }
  lock.unlock();
  pool_.submit({[self = shared_from_this()] { self->run_next(); }, false});
}

size_t Strand::length() {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

}  // namespace hasten::rpc
