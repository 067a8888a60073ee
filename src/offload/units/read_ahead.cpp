// See read_ahead.h.
#include "offload/units/read_ahead.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace hasten::offload {

struct ReadAhead::Impl {
  enum class State { kAway, kQueued, kRead, kFailed };

  // State of the thread. A forked child, which has no such thread, makes another one.
  struct Shared {
    std::mutex mutex;
    std::condition_variable work_arrived, done;
    std::deque<size_t> queue;
    std::vector<State> states;
    std::vector<std::exception_ptr> errors;
    std::function<void(size_t)> read;
    bool stop = false;
  };

  static std::shared_ptr<Shared> make_shared_state(size_t num_units, std::function<void(size_t)> read) {
    auto shared = std::make_shared<Shared>();
    shared->states.assign(num_units, State::kAway);
    shared->errors.resize(num_units);
    shared->read = std::move(read);
    return shared;
  }

  static void run(const std::shared_ptr<Shared>& shared) {
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->work_arrived.wait(lock, [&] { return shared->stop || !shared->queue.empty(); });
      if (shared->stop) return;
      const size_t unit = shared->queue.front();
      shared->queue.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        shared->read(unit);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      shared->errors[unit] = error;
      shared->states[unit] = error ? State::kFailed : State::kRead;
      shared->done.notify_all();
    }
  }

  void ensure_thread() {
    const std::lock_guard lock(start_mutex);
    if (thread && owner == getpid()) return;
    if (thread) {
      // The parent's thread does not exist here, and its locks may be held for ever: both are left behind.
      (void)thread.release();
      shared = make_shared_state(num_units, read);
    }
    owner = getpid();
    thread = std::make_unique<std::thread>([state = shared] { run(state); });
  }

  size_t num_units = 0;
  std::function<void(size_t)> read;
  std::shared_ptr<Shared> shared;
  std::mutex start_mutex;
  std::unique_ptr<std::thread> thread;
  pid_t owner = 0;
};

ReadAhead::ReadAhead(size_t num_units, std::function<void(size_t)> read) : impl_(std::make_unique<Impl>()) {
  impl_->num_units = num_units;
  impl_->read = read;
  impl_->shared = Impl::make_shared_state(num_units, std::move(read));
}

ReadAhead::~ReadAhead() {
  if (!impl_->thread) return;
  if (impl_->owner != getpid()) {
    (void)impl_->thread.release();
    return;
  }
  {
    const std::lock_guard lock(impl_->shared->mutex);
    impl_->shared->stop = true;
  }
  impl_->shared->work_arrived.notify_all();
  impl_->thread->join();
}

void ReadAhead::request(size_t unit) {
  impl_->ensure_thread();
  auto& shared = *impl_->shared;
  const std::lock_guard lock(shared.mutex);
  if (shared.states[unit] != Impl::State::kAway) return;
  shared.states[unit] = Impl::State::kQueued;
  shared.queue.push_back(unit);
  shared.work_arrived.notify_one();
}

void ReadAhead::wait(size_t unit) {
  impl_->ensure_thread();
  auto& shared = *impl_->shared;
  std::unique_lock lock(shared.mutex);
  if (shared.states[unit] == Impl::State::kRead) return;
  if (shared.states[unit] == Impl::State::kAway) {
    shared.states[unit] = Impl::State::kQueued;
    shared.queue.push_front(unit);
    shared.work_arrived.notify_one();
  }
  shared.done.wait(
      lock, [&] { return shared.states[unit] == Impl::State::kRead || shared.states[unit] == Impl::State::kFailed; });
  if (shared.states[unit] == Impl::State::kRead) return;
  shared.states[unit] = Impl::State::kAway;  // the next use tries again
  std::rethrow_exception(shared.errors[unit]);
}

void ReadAhead::forget(size_t unit) {
  auto& shared = *impl_->shared;
  const std::lock_guard lock(shared.mutex);
  if (shared.states[unit] == Impl::State::kRead) shared.states[unit] = Impl::State::kAway;
}

}  // namespace hasten::offload
