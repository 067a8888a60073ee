// Halving, and the agreement after each attempt; see batch_size.h.
#include "hasten/memory/batch_size.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>
#include <string_view>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/memory/allocator.h"

namespace hasten::memory {
namespace {

// The result of a call: success, out of memory, or the words of another error.
constexpr const char* kOutOfMemory = "out of memory";

std::string words_of(const std::exception_ptr& error) {
  if (is_out_of_memory(error)) return kOutOfMemory;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return text("threw: ", exception.what());
  } catch (...) {
    return "threw: an exception without words";
  }
}

void check_size(const comm::Group& group, int64_t start) {
  if (start >= 1) return;
  throw UsageError(Origin{"state", group.rank(), group.world_size()}, "find_executable_batch_size: start = ", start,
                   "; expected at least 1.");
}

// Returns true if the call ran out of memory on any rank. Throws on all ranks what it threw on one, and if nothing
// smaller is left to try.
bool ran_out(const comm::Group& group, const BatchSizeAttempt& attempt, const std::exception_ptr& error) {
  const comm::Purpose purpose("find_executable_batch_size");
  const auto all = comm::gather_object(group, error ? words_of(error) : std::string());
  if (error && !is_out_of_memory(error)) std::rethrow_exception(error);
  bool any = false;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    any = any || all[rank] == kOutOfMemory;
    if (all[rank].empty() || all[rank] == kOutOfMemory) continue;
    throw CommError({"state", group.rank(), group.world_size()}, "find_executable_batch_size",
                    "find_executable_batch_size: the function on rank ", rank, ' ', all[rank]);
  }
  if (!any || attempt.batch_size > 1) return any;
  throw UsageError(Origin{"state", group.rank(), group.world_size()},
                   "find_executable_batch_size: not even a batch of 1 fits into memory (tried from ", attempt.start,
                   " on). Use a smaller model, or more memory.");
}

}  // namespace

bool is_out_of_memory(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const std::exception& exception) {
    const std::string_view words = exception.what();
    for (const char* sign : {"DefaultCPUAllocator: can't allocate memory", "not enough memory", "CUDA out of memory",
                             "CUDNN_STATUS_NOT_SUPPORTED"}) {
      if (words.find(sign) != std::string_view::npos) return true;
    }
    return false;
  } catch (...) {
    return false;
  }
}

int64_t detail::halve_until_it_fits(const comm::Group& group, int64_t start,
                                    const std::function<void(int64_t)>& attempt,
                                    const std::function<void(const BatchSizeAttempt&)>& before_agreement) {
  if (start < 1) before_agreement({start, start});
  check_size(group, start);
  for (int64_t batch_size = start;; batch_size /= 2) {
    std::exception_ptr error;
    try {
      attempt(batch_size);
    } catch (...) {
      error = std::current_exception();
    }
    before_agreement({start, batch_size});
    if (!ran_out(group, {start, batch_size}, error)) return batch_size;
    error = nullptr;
    give_back_freed_memory();
  }
}

void detail::agree_without_attempt(const comm::Group& group, const BatchSizeAttempt& attempt) {
  check_size(group, attempt.start);
  ran_out(group, attempt, nullptr);
}

}  // namespace hasten::memory
