// FetchQueue: the batches under way between planning and the loop, in the order in which they were planned.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "data/loader/detail/worker_pool.h"
#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data::detail {

class FetchQueue {
 public:
  struct Slot {
    ShardedBatch planned = {};
    AnyBatch batch = {};  // once done
    std::exception_ptr error = nullptr;
    bool done = false;
    bool sent = false;
  };
  using Entry = std::shared_ptr<Slot>;
  using Job = std::function<AnyBatch(size_t worker, const Indices&)>;

  /// `workers`, which must outlive the queue, run `job` for each batch; null: none does. The job must own
  /// what it uses, since it may still run when the queue is gone.
  explicit FetchQueue(WorkerPool* workers, Job job = {})
      : workers_(workers), job_(std::make_shared<const Job>(std::move(job))) {}
  ~FetchQueue() { clear(); }
  FetchQueue(const FetchQueue&) = delete;
  FetchQueue& operator=(const FetchQueue&) = delete;

  bool empty() const noexcept { return slots_.empty(); }
  size_t size() const noexcept { return slots_.size(); }
  Slot& front() noexcept { return *slots_.front(); }

  /// Adds a batch at the end and sets a worker on it.
  void add(ShardedBatch planned, AnyBatch ready = {});
  /// Takes out the first.
  Entry take_front() noexcept;
  /// Takes out a batch that a worker has done, with its error if it has one: the first, or without `in_order` any. But
  /// the newest waits for the others, because the last of a pass must come last. Null: none was done within the
  /// timeout. Blocks: until one is done.
  Entry take_done(bool in_order, std::optional<std::chrono::milliseconds> timeout);
  /// Returns true if the first one's batch is there.
  bool front_is_there();
  /// Drops all; jobs that have not started do not start.
  void clear() noexcept;

 private:
  WorkerPool* workers_;
  std::shared_ptr<const Job> job_;
  std::deque<Entry> slots_;
};

}  // namespace hasten::data::detail
