// The part of a stream that is still needed: the batches that were just read, and the epoch's first ones. The samples
// of the latter fill up the end. Samples are requested by their place in the stream. Part of stream_loader.h.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data::detail {

class BatchWindow {
 public:
  explicit BatchWindow(const BatchOperations& operations) : operations_(operations) {}

  /// Batches that begin below this place stay for good.
  void keep_first(size_t num_rows) noexcept { kept_ = num_rows; }

  /// Batches are added in the order in which they lie in the stream.
  void add(size_t start, size_t size, AnyBatch batch) { entries_.push_back({start, size, std::move(batch)}); }

  /// Batches that end before `place` are not needed any more, apart from those that stay for good.
  void forget_before(size_t place);

  /// Returns the samples at these places, as one batch of its own.
  /// Throws: UsageError if batches cannot be joined.
  AnyBatch pick(const Indices& places) const;

 private:
  struct Entry {
    size_t start, size;
    AnyBatch batch;
  };
  const Entry& at(size_t place) const;
  AnyBatch part_of(const Entry& entry, size_t begin, size_t count) const;

  BatchOperations operations_;
  size_t kept_ = 0;
  std::deque<Entry> entries_;
};

}  // namespace hasten::data::detail
