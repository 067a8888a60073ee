// See future.h.
#include "hasten/rpc/future.h"

#include "hasten/core/error.h"
#include "rpc/thread_state.h"

namespace hasten::rpc::detail {

std::shared_ptr<Executor> Executor::current() {
  return current_thread().executor.lock();
}

void StateBase::finish() {
  std::vector<std::function<void()>> continuations;
  {
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    continuations.swap(continuations_);
    if (num_sleepers_ > 0) changed_.notify_all();
  }
  for (auto& continuation : continuations) {
    if (executor_) {
      executor_->run(std::move(continuation));
    } else {
      continuation();
    }
  }
}

void StateBase::finish_with(std::exception_ptr error) {
  error_ = std::move(error);
  finish();
}

bool StateBase::fail(std::exception_ptr error) {
  if (!claim()) return false;
  finish_with(std::move(error));
  return true;
}

void StateBase::on_done(std::function<void()> continuation) {
  {
    const std::lock_guard lock(mutex_);
    if (!done()) {
      continuations_.push_back(std::move(continuation));
      return;
    }
  }
  continuation();
}

void StateBase::wait() {
  if (done()) return;
  const auto executor = executor_ ? executor_ : Executor::current();
  if (executor) {
    executor->wait(*this, std::nullopt);
  } else {
    sleep(std::nullopt);
  }
}

bool StateBase::wait_until(std::chrono::steady_clock::time_point until) {
  if (done()) return true;
  const auto executor = executor_ ? executor_ : Executor::current();
  if (executor) {
    executor->wait(*this, until);
  } else {
    sleep(until);
  }
  return done();
}

void StateBase::sleep(std::optional<std::chrono::steady_clock::time_point> until) {
  std::unique_lock lock(mutex_);
  ++num_sleepers_;
  if (until) {
    changed_.wait_until(lock, *until, [&] { return done(); });
  } else {
    changed_.wait(lock, [&] { return done(); });
  }
  --num_sleepers_;
}

void StateBase::cancel() {
  if (done()) return;
  const auto give_up = std::move(on_cancel);
  if (fail(cancelled_error()) && give_up) give_up();
}

std::exception_ptr cancelled_error() {
  return std::make_exception_ptr(CommError({"rpc"}, "cancel", "the call was cancelled by its caller."));
}

std::exception_ptr unanswered_error() {
  return std::make_exception_ptr(
      CommError({"rpc"}, "promise", "nobody answered: the Promise was dropped before set() or fail()."));
}

void throw_not_done() {
  throw UsageError({"rpc"}, "value() of a future that is not done. Call wait(), or ask done() first.");
}

}  // namespace hasten::rpc::detail
