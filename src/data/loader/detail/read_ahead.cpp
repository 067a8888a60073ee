// See read_ahead.h.
#include "data/loader/detail/read_ahead.h"

#include <algorithm>
#include <utility>

namespace hasten::data::detail {
namespace {

// Reads until the stream ends or fails; the thread's own.
FetchQueue::Job reading(std::function<AnyBatch()> read) {
  return [read = std::move(read), ended = std::make_shared<bool>(false)](size_t, const Indices&) -> AnyBatch {
    if (*ended) return nullptr;
    *ended = true;  // unless a batch comes
    AnyBatch batch = read();
    *ended = !batch;
    return batch;
  };
}

}  // namespace

ReadAhead::ReadAhead(std::function<AnyBatch()> read, size_t num_workers, size_t max_jobs,
                     std::optional<std::chrono::milliseconds> timeout, const Origin& origin)
    : read_(std::move(read)),
      max_jobs_(std::max<size_t>(1, max_jobs)),
      timeout_(timeout),
      origin_(origin),
      thread_(num_workers > 0 ? std::make_unique<WorkerPool>(1) : nullptr),
      queue_(thread_.get(), reading(read_)) {}

AnyBatch ReadAhead::next() {
  if (ended_) return nullptr;
  if (!thread_) {
    AnyBatch batch = read_();
    ended_ = !batch;
    return batch;
  }
  while (queue_.size() < max_jobs_) queue_.add({});
  const auto slot = queue_.take_done(true, timeout_);
  if (!slot) {
    throw StreamTimeout(origin_, "", "no batch of the stream within the timeout of ", timeout_->count(),
                        " ms. Give a longer timeout.");
  }
  ended_ = !slot->batch;
  if (slot->error) std::rethrow_exception(slot->error);
  if (!ended_) queue_.add({});
  return std::move(slot->batch);
}

}  // namespace hasten::data::detail
