// Reading a stream ahead of the training loop: one thread, in order, up to a number of batches. Without
// workers the caller reads when it is its turn. Part of stream_loader.h; threads are worker_pool.h's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "data/loader/detail/fetch_queue.h"
#include "data/loader/detail/worker_pool.h"
#include "hasten/core/error.h"

namespace hasten::data::detail {

/// No batch in time; the stream itself has not failed.
struct StreamTimeout : DataError {
  using DataError::DataError;
};

class ReadAhead {
 public:
  /// `read` gives nothing at the end and is not called after that. With workers it runs on one other thread.
  ReadAhead(std::function<AnyBatch()> read, size_t num_workers, size_t max_jobs,
            std::optional<std::chrono::milliseconds> timeout, const Origin& origin);

  /// Returns the next batch, null at the end.
  /// Blocks: until it has been read. Throws: what `read` throws; StreamTimeout.
  AnyBatch next();

 private:
  std::function<AnyBatch()> read_;
  size_t max_jobs_;
  std::optional<std::chrono::milliseconds> timeout_;
  Origin origin_;
  bool ended_ = false;
  std::unique_ptr<WorkerPool> thread_;
  FetchQueue queue_;
};

}  // namespace hasten::data::detail
