// find_executable_batch_size: the largest batch that fits into memory, found by halving (Accelerate's
// decorator of this name).
//
// Every rank calls with the same start. If any rank runs out of memory, all go on with half. The ranks agree on that
// only when every rank's call has ended, by returning or by throwing.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "hasten/comm/group/group.h"

namespace hasten::memory {

/// Returns true if the exception means that memory is used up: c10::OutOfMemoryError (a GPU's), std::bad_alloc,
/// libtorch's CPU allocator, and cuDNN where it means that.
bool is_out_of_memory(const std::exception_ptr& error) noexcept;

/// A call with `batch_size`, after the first with `start`.
struct BatchSizeAttempt {
  int64_t start = 0;
  int64_t batch_size = 0;
};

namespace detail {
/// Calls `attempt` with start, start / 2, …, and gives the size with which it returned on all ranks.
int64_t halve_until_it_fits(const comm::Group& group, int64_t start, const std::function<void(int64_t)>& attempt,
                            const std::function<void(const BatchSizeAttempt&)>& before_agreement);
/// Called on a rank that attempts nothing when the others agree on an attempt.
void agree_without_attempt(const comm::Group& group, const BatchSizeAttempt& attempt);
}  // namespace detail

/// Calls `fn(batch_size)` with `start`, and with half of it again and again while any rank runs out of memory. Returns
/// fn's value. Between two calls memory that is free goes back to the system. `fn` makes everything that depends on the
/// size (loaders, models, optimizers). Objects of a failed call are destroyed with it. A rank that runs out of memory
/// between two collectives of fn leaves the others waiting in the second, until the group's timeout. If sizes of memory
/// differ, let fn begin with a step on its own rank (no_sync). `before_agreement` is called after each call of fn,
/// before the ranks agree.
/// Collective: yes, once after each call, with equal start. Blocks: until every rank's call has ended. Throws:
/// UsageError if start is below 1, and on all ranks if not even a batch of 1 fits; other exceptions of fn, for which
/// the other ranks throw CommError with its words.
template <class Fn>
std::invoke_result_t<Fn, int64_t> find_executable_batch_size(
    const comm::Group& group, int64_t start, Fn&& fn,
    const std::function<void(const BatchSizeAttempt&)>& before_agreement = [](const BatchSizeAttempt&) {}) {
  using Value = std::invoke_result_t<Fn, int64_t>;
  if constexpr (std::is_void_v<Value>) {
    detail::halve_until_it_fits(group, start, fn, before_agreement);
  } else {
    std::optional<Value> value;
    const auto attempt = [&](int64_t batch_size) {
      value.reset();
      value.emplace(fn(batch_size));
    };
    detail::halve_until_it_fits(group, start, attempt, before_agreement);
    return std::move(*value);
  }
}

}  // namespace hasten::memory
