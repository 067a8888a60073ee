// Future and Promise: a value that comes later, with continuations, cancellation and coroutines.
//
// Futures of calls are completed by the agent. Their continuations run in its pool, never in the thread that reads
// messages. A Promise completes a future by hand. A handler that returns the future answers its call later.
#pragma once

#include <atomic>
#include <chrono>
#include <coroutine>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/rpc/detail/state.h"

namespace hasten::rpc {

template <class T>
class Future;

namespace detail {
/// The parameter of a function of one, void for templates and others.
template <class F>
struct FirstParameter {
  using type = void;
};
template <class R, class A>
struct FirstParameter<R (*)(A)> {
  using type = std::remove_cvref_t<A>;
};
template <class R, class C, class A>
struct FirstParameter<R (C::*)(A)> : FirstParameter<R (*)(A)> {};
template <class R, class C, class A>
struct FirstParameter<R (C::*)(A) const> : FirstParameter<R (*)(A)> {};
template <class F>
  requires requires { &F::operator(); }
struct FirstParameter<F> : FirstParameter<decltype(&F::operator())> {};
}  // namespace detail

/// Completes a Future by hand. A copyable handle; the first set() or fail() counts. If all copies go before either, the
/// future fails with a CommError.
template <class T>
class Promise {
 public:
  Promise() : guard_(std::make_shared<Guard>(std::make_shared<detail::State<T>>(detail::Executor::current()))) {}

  /// Returns false if the future was done already.
  template <class... V>
  bool set(V&&... value) const {
    return guard_->state->set(detail::Stored<T>{std::forward<V>(value)...});
  }
  bool fail(std::exception_ptr error) const { return guard_->state->fail(std::move(error)); }
  template <class E>
    requires std::is_base_of_v<std::exception, E>
  bool fail(const E& error) const {
    return fail(std::make_exception_ptr(error));
  }
  Future<T> future() const { return Future<T>(guard_->state); }

 private:
  struct Guard {
    explicit Guard(std::shared_ptr<detail::State<T>> s) : state(std::move(s)) {}
    ~Guard() {
      if (!state->done()) state->fail(detail::unanswered_error());
    }
    std::shared_ptr<detail::State<T>> state;
  };
  std::shared_ptr<Guard> guard_;
};

/// A value that comes later, or an error. A copyable handle to shared state.
template <class T = void>
class [[nodiscard]] Future {
 public:
  using value_type = T;
  explicit Future(std::shared_ptr<detail::State<T>> state) : state_(std::move(state)) {}
  // Moves copy: a handle that was moved from is one still.
  Future(const Future&) = default;
  Future& operator=(const Future&) = default;
  /// A future that has its value already. A handler may return it at once.
  template <class V>
    requires(!std::is_void_v<T> && std::is_convertible_v<V, detail::Stored<T>> &&
             !std::is_same_v<std::remove_cvref_t<V>, Future>)
  Future(V&& value) : state_(std::make_shared<detail::State<T>>(detail::Executor::current())) {
    state_->set(detail::Stored<T>(std::forward<V>(value)));
  }

  bool done() const noexcept { return state_->done(); }
  bool has_error() const noexcept { return done() && state_->error() != nullptr; }
  /// Returns the value, a copy. Blocks: until it is there. Throws: the error; UsageError in a thread
  /// that may not wait (an inline handler).
  T wait() const {
    state_->wait();
    return value();
  }
  /// Returns false if the time is over before the value is there. Throws: UsageError as wait().
  bool wait_for(std::chrono::duration<double> time) const {
    return state_->wait_until(std::chrono::steady_clock::now() +
                              std::chrono::duration_cast<std::chrono::nanoseconds>(time));
  }
  /// Returns the value of a future that is done. Throws: the error; UsageError if it is not done.
  T value() const {
    require_done();
    if (state_->error()) std::rethrow_exception(state_->error());
    if constexpr (!std::is_void_v<T>) return state_->value();
  }
  /// Gives the call up: the future fails with CommError, and the callee's rpc::call().cancelled() becomes true.
  void cancel() const { state_->cancel(); }

  /// Runs `fn` when the future is done, in the agent's pool. `fn(T)` is called on success only, and its own future is
  /// flattened. `fn(Future<T>)` is called in any case, and its future nests, as torch's does.
  template <class F>
  auto then(F fn) const {
    if constexpr (takes_future<F>() || (std::is_invocable_v<F, Future<T>> && !takes_value<F>())) {
      using R = std::invoke_result_t<F, Future<T>>;
      auto next = std::make_shared<detail::State<R>>(detail_executor());
      state_->on_done(
          [self = *this, next, fn = std::move(fn)]() mutable { run_into<R>(*next, [&] { return fn(self); }); });
      return Future<R>(next);
    } else {
      using Raw = decltype(detail::call_with<T>(fn, state_->value()));
      using R = typename detail::Unwrapped<Raw>::type;
      auto next = std::make_shared<detail::State<R>>(detail_executor());
      state_->on_done([state = state_, next, fn = std::move(fn)]() mutable {
        if (state->error()) {
          next->fail(state->error());
        } else if constexpr (detail::Unwrapped<Raw>::is_future) {
          try {
            forward(detail::call_with<T>(fn, state->value()), next);
          } catch (...) {
            next->fail(std::current_exception());
          }
        } else {
          run_into<R>(*next, [&] { return detail::call_with<T>(fn, state->value()); });
        }
      });
      return Future<R>(next);
    }
  }
  /// Runs `fn(Future<T>)` when the future is done; its result is dropped.
  template <class F>
  void add_done_callback(F fn) const {
    state_->on_done([self = *this, fn = std::move(fn)]() mutable { fn(self); });
  }

  const std::shared_ptr<detail::State<T>>& state() const noexcept { return state_; }

  // ---- co_await.
  bool await_ready() const noexcept { return done(); }
  void await_suspend(std::coroutine_handle<> handle) const {
    state_->on_done([handle] { handle.resume(); });
  }
  T await_resume() const { return value(); }

  /// Lets `target` end as `source` does.
  template <class R>
  static void forward(const Future<R>& source, const std::shared_ptr<detail::State<R>>& target) {
    source.state()->on_done([from = source.state(), target] {
      if (from->error()) {
        target->fail(from->error());
      } else {
        target->set(from->value());
      }
    });
  }

 private:
  // A value converts to a future, so that a function of a future takes a value as well.
  template <class F>
  static constexpr bool takes_future() {
    return std::is_same_v<typename detail::FirstParameter<F>::type, Future>;
  }
  template <class F>
  static constexpr bool takes_value() {
    if constexpr (std::is_void_v<T>) {
      return std::is_invocable_v<F>;
    } else {
      return std::is_invocable_v<F, T&>;
    }
  }
  template <class R, class G>
  static void run_into(detail::State<R>& target, const G& body) {
    try {
      if constexpr (std::is_void_v<R>) {
        body();
        target.set(detail::Unit{});
      } else {
        target.set(body());
      }
    } catch (...) {
      target.fail(std::current_exception());
    }
  }
  std::shared_ptr<detail::Executor> detail_executor() const { return detail::Executor::current(); }
  void require_done() const {
    if (!done()) detail_not_done();
  }
  [[noreturn]] static void detail_not_done();

  std::shared_ptr<detail::State<T>> state_;
};

namespace detail {
[[noreturn]] void throw_not_done();
}
template <class T>
void Future<T>::detail_not_done() {
  detail::throw_not_done();
}

/// Returns a future that is done when all are, with them. It fails with the first error (in the order given), after all
/// have ended.
template <class T>
Future<std::vector<Future<T>>> collect_all(std::vector<Future<T>> futures) {
  auto result = std::make_shared<detail::State<std::vector<Future<T>>>>(detail::Executor::current());
  struct Count {
    std::vector<Future<T>> futures;
    std::atomic<size_t> left;
  };
  auto count = std::make_shared<Count>();
  count->futures = std::move(futures);
  count->left = count->futures.size() + 1;
  const auto one_done = [count, result] {
    if (--count->left > 0) return;
    for (const auto& future : count->futures) {
      if (future.has_error()) {
        result->fail(future.state()->error());
        return;
      }
    }
    result->set(count->futures);
  };
  for (size_t i = 0; i < count->futures.size(); ++i) count->futures[i].state()->on_done(one_done);
  one_done();
  return Future<std::vector<Future<T>>>(result);
}

/// Returns all values. Blocks: until all have ended. Throws: the first error, in the order given.
template <class T>
auto wait_all(const std::vector<Future<T>>& futures) {
  for (const auto& future : futures) future.state()->wait();
  if constexpr (std::is_void_v<T>) {
    for (const auto& future : futures) future.value();
  } else {
    std::vector<T> values;
    for (const auto& future : futures) values.push_back(future.value());
    return values;
  }
}

namespace detail {

template <class T>
struct CoroutineBase {
  Promise<T> promise;
  Future<T> get_return_object() const { return promise.future(); }
  std::suspend_never initial_suspend() const noexcept { return {}; }
  std::suspend_never final_suspend() const noexcept { return {}; }
  void unhandled_exception() const { promise.fail(std::current_exception()); }
};
template <class T>
struct Coroutine : CoroutineBase<T> {
  template <class V>
  void return_value(V&& value) const {
    this->promise.set(std::forward<V>(value));
  }
};
template <>
struct Coroutine<void> : CoroutineBase<void> {
  void return_void() const { promise.set(); }
};

}  // namespace detail
}  // namespace hasten::rpc

template <class T, class... Arguments>
struct std::coroutine_traits<hasten::rpc::Future<T>, Arguments...> {
  using promise_type = hasten::rpc::detail::Coroutine<T>;
};
