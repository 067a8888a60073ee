// Reading a stream ahead of the training loop: one thread, in order, up to a number of batches. Without
// workers the caller reads when it is its turn. Part of stream_loader.h; threads are worker_pool.h's.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/data/loader/detail/worker_pool.h"

namespace hasten::data::detail {

/// No batch in time; the stream itself has not failed.
struct StreamTimeout : DataError {
  using DataError::DataError;
};
[[noreturn]] void throw_stream_timeout(const Origin& origin, std::chrono::milliseconds timeout);

template <class Batch>
class ReadAhead {
 public:
  /// `read` gives nothing at the end and is not called after that. With workers it runs on one other thread.
  ReadAhead(std::function<std::optional<Batch>()> read, size_t num_workers, size_t max_jobs,
            std::optional<std::chrono::milliseconds> timeout, const Origin& origin)
      : read_(std::make_shared<Reading>(Reading{std::move(read)})),
        max_jobs_(std::max<size_t>(1, max_jobs)),
        timeout_(timeout),
        origin_(origin) {
    if (num_workers > 0) thread_ = std::make_unique<WorkerPool>(1);
  }

  /// The next batch, nothing at the end.
  /// Collective: no. Blocks: until it has been read. Throws: what `read` throws; StreamTimeout.
  std::optional<Batch> next() {
    if (ended_) return std::nullopt;
    if (!thread_) {
      auto batch = read_->read();
      ended_ = !batch;
      return batch;
    }
    while (slots_.size() < max_jobs_) submit();
    const auto slot = slots_.front();
    if (!thread_->wait([&] { return slot->done; }, timeout_)) throw_stream_timeout(origin_, *timeout_);
    slots_.pop_front();
    ended_ = !slot->batch;
    if (slot->error) std::rethrow_exception(slot->error);
    if (!ended_) submit();
    return std::move(slot->batch);
  }

 private:
  struct Reading {
    std::function<std::optional<Batch>()> read;
    bool ended = false;  // the thread's own
  };
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
    bool done = false;
  };

  void submit() {
    slots_.push_back(std::make_shared<Slot>());
    thread_->submit(this, [slot = slots_.back(), reading = read_, pool = thread_.get()](size_t) {
      std::optional<Batch> batch;
      std::exception_ptr error;
      if (!reading->ended) {
        try {
          batch = reading->read();
        } catch (...) {
          error = std::current_exception();
        }
        reading->ended = !batch;
      }
      pool->finish([&] {
        slot->batch = std::move(batch);
        slot->error = error;
        slot->done = true;
      });
    });
  }

  std::shared_ptr<Reading> read_;
  size_t max_jobs_;
  std::optional<std::chrono::milliseconds> timeout_;
  Origin origin_;
  bool ended_ = false;
  std::deque<std::shared_ptr<Slot>> slots_;
  std::unique_ptr<WorkerPool> thread_;  // last: it ends before what it uses
};

}  // namespace hasten::data::detail
