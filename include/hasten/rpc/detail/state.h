// The shared state of futures; future.h has the handles.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace hasten::rpc {

template <class T>
class Future;

namespace detail {

struct Unit {};
template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, Unit, T>;

class StateBase;

/// Where continuations run and how a thread waits; one per agent.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void run(std::function<void()> task) = 0;
  /// Returns when the state is done or the time has come. Throws: UsageError where this thread may not wait.
  virtual void wait(StateBase& state, std::optional<std::chrono::steady_clock::time_point> until) = 0;
  /// Returns the executor of the agent that runs the current thread's task; null in other threads.
  static std::shared_ptr<Executor> current();
};

/// The common part of futures of all types.
class StateBase {
 public:
  explicit StateBase(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}
  virtual ~StateBase() = default;
  StateBase(const StateBase&) = delete;
  StateBase& operator=(const StateBase&) = delete;

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  const std::exception_ptr& error() const noexcept { return error_; }
  /// Completes the future: the first of several completions wins. Returns true for it.
  bool claim() noexcept { return !claimed_.exchange(true); }
  /// After claim().
  void finish();
  /// After claim(), with an error.
  void finish_with(std::exception_ptr error);
  bool fail(std::exception_ptr error);
  void on_done(std::function<void()> continuation);
  void wait();
  bool wait_until(std::chrono::steady_clock::time_point until);
  /// Sleeps without asking the executor.
  void sleep(std::optional<std::chrono::steady_clock::time_point> until);
  void cancel();

  /// Called once by cancel(), if the future is not done.
  std::function<void()> on_cancel = {};
  /// The rank whose answer completes this future, -1 if none does.
  int awaited_rank = -1;

 protected:
  std::exception_ptr error_;

 private:
  const std::shared_ptr<Executor> executor_;
  std::atomic<bool> claimed_ = false, done_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_sleepers_ = 0;
  std::vector<std::function<void()>> continuations_;
};

template <class T>
class State : public StateBase {
 public:
  using StateBase::StateBase;
  bool set(Stored<T> value) {
    if (!claim()) return false;
    value_.emplace(std::move(value));
    finish();
    return true;
  }
  Stored<T>& value() { return *value_; }

 protected:
  std::optional<Stored<T>> value_;
};

std::exception_ptr cancelled_error();
std::exception_ptr unanswered_error();

template <class T>
struct Unwrapped {
  using type = T;
  static constexpr bool is_future = false;
};
template <class T>
struct Unwrapped<Future<T>> {
  using type = T;
  static constexpr bool is_future = true;
};

template <class T, class F>
auto call_with(F& fn, Stored<T>& value) {
  if constexpr (std::is_void_v<T>) {
    return fn();
  } else {
    return fn(value);
  }
}

}  // namespace detail

}  // namespace hasten::rpc
