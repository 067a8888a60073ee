// The handle of an operation under way, as an asynchronous collective returns it.
//
// A Work owns every tensor its operation touches. Steps after the arrival of the bytes (dividing for a mean, copying
// into a non-contiguous result) happen in wait(). So a result is valid only after wait().
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace hasten::comm {

namespace detail {

/// A started operation, type-erased; made by Group.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool done() = 0;
  /// Returns when the operation has ended; throws CommError with the words of the rank that failed.
  virtual void wait() = 0;
  /// The owner goes away without having waited: keep the tensors alive until the end, log an error.
  static void abandon(std::shared_ptr<Operation> operation) noexcept;

 protected:
  virtual void on_abandon(std::shared_ptr<Operation> self) noexcept = 0;
};

}  // namespace detail

/// Handle of a running operation whose result is a T (void: the argument tensors). Move-only. Dropping it without
/// wait() is allowed: its tensors stay alive until it ends, and an error is logged.
template <class T = void>
class [[nodiscard]] Work {
 public:
  /// An operation that has ended already, with its result (a world of one).
  explicit Work(std::function<T()> finish) : finish_(std::move(finish)) {}
  Work(std::shared_ptr<detail::Operation> operation, std::function<T()> finish)
      : operation_(std::move(operation)), finish_(std::move(finish)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept {
    detail::Operation::abandon(std::exchange(operation_, std::move(other.operation_)));
    finish_ = std::move(other.finish_);
    return *this;
  }
  ~Work() { detail::Operation::abandon(std::move(operation_)); }

  /// Returns true if wait() would return at once.
  bool done() const { return !operation_ || operation_->done(); }

  /// Waits for the end and gives the result; call it once.
  /// Collective: no (its start was). Blocks: until the operation has ended or its group's timeout has passed.
  /// Throws: CommError if a peer, the network or the timeout ended it.
  T wait() {
    if (const auto operation = std::exchange(operation_, nullptr)) operation->wait();
    return finish_();
  }

  /// Returns the same operation with a further step at its end: wait() then gives next(result). For a Work<>, `next`
  /// takes nothing. `next` can be copied.
  template <class Next>
  auto then(Next next) && {
    const auto follow = [finish = std::move(finish_), next = std::move(next)]() mutable {
      if constexpr (std::is_void_v<T>) {
        finish();
        return next();
      } else {
        return next(finish());
      }
    };
    using Result = decltype(std::declval<std::decay_t<decltype(follow)>>()());
    return Work<Result>(std::exchange(operation_, nullptr), std::function<Result()>(follow));
  }

 private:
  std::shared_ptr<detail::Operation> operation_;
  std::function<T()> finish_;
};

}  // namespace hasten::comm
