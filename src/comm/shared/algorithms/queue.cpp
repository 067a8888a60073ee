// See queue.h.
#include "comm/shared/algorithms/queue.h"

#include "comm/connecting/serial_executor.h"

namespace hasten::comm::shared {

Queue::~Queue() {
  Lock lock(mutex_);
  while (!entries_.empty()) {
    if (driving_) {
      finished_.wait(lock);
    } else {
      drive(lock, nullptr);
    }
  }
  stopping_ = true;
  lock.unlock();
  work_arrived_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Queue::Entry> Queue::start(std::unique_ptr<Operation> operation) {
  auto entry = std::make_shared<Entry>();
  entry->operation = std::move(operation);
  entry->deadline = watch_.deadline();
  const Lock lock(mutex_);
  if (broken_) {
    entry->error = broken_;
    entry->done = true;
    return entry;
  }
  entries_.push_back(entry);
  if (!driving_ && entries_.size() == 1 && steps_.can_begin()) {
    entry->operation->contribute(steps_);
    entry->contributed = true;
    if (entry->operation->is_one_step(steps_)) return entry;
  }
  ask_thread();
  return entry;
}

bool Queue::done(const std::shared_ptr<Entry>& entry) {
  Lock lock(mutex_);
  // It is of a single step, and no other thread carries it out.
  const bool is_ours = !entry->done && !driving_ && entries_.front() == entry && entry->contributed &&
                       entry->operation->is_one_step(steps_);
  if (!is_ours) return entry->done;
  const bool ends = steps_.all_posted() || (looks_at_peers_.is_time() && !steps_.may_end_by(entry->deadline));
  if (ends) drive(lock, entry.get());
  return entry->done;
}

void Queue::wait(const std::shared_ptr<Entry>& entry) {
  Lock lock(mutex_);
  while (!entry->done) {
    if (!driving_) {
      drive(lock, entry.get());
    } else if (finished_.wait_for(lock, kSleep) == std::cv_status::timeout && !entry->done) {
      WaitCheck::run();
    }
  }
  if (entry->error) std::rethrow_exception(entry->error);
}

void Queue::drive(Lock& lock, const Entry* last) {
  driving_ = true;
  while (!entries_.empty() && !(last != nullptr && last->done)) {
    const auto entry = entries_.front();
    const auto broken = broken_;
    lock.unlock();
    const auto breaks = run(*entry, broken);
    lock.lock();
    broken_ = breaks;
    entry->done = true;
    entries_.pop_front();
    finished_.notify_all();
  }
  driving_ = false;
  finished_.notify_all();
  if (!entries_.empty()) ask_thread();
}

std::exception_ptr Queue::run(Entry& entry, std::exception_ptr broken) {
  try {
    if (broken) std::rethrow_exception(broken);
    steps_.set_deadline(entry.deadline);
    if (!entry.contributed) entry.operation->contribute(steps_);
    entry.operation->complete(steps_);
  } catch (const Backend::Mismatch&) {
    // All ranks have found it in the same step. Later operations are not affected.
    entry.error = std::current_exception();
  } catch (...) {
    entry.error = broken = std::current_exception();
  }
  entry.operation.reset();
  return broken;
}

void Queue::ask_thread() {
  thread_wanted_ = true;
  if (thread_.joinable()) {
    if (!lingers_) work_arrived_.notify_one();
    return;
  }
  thread_ = start_without_signals([this] { serve(); });
}

void Queue::serve() {
  Lock lock(mutex_);
  for (;;) {
    work_arrived_.wait(lock, [this] { return stopping_ || (thread_wanted_ && !driving_ && !entries_.empty()); });
    if (stopping_) return;
    thread_wanted_ = false;
    lingers_ = true;
    const bool stops = work_arrived_.wait_for(lock, linger_, [this] { return stopping_; });
    lingers_ = false;
    if (stops) return;
    if (!driving_ && !entries_.empty()) drive(lock, nullptr);
  }
}

}  // namespace hasten::comm::shared
