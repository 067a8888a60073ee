// A pass over a loader as three stages: plan (which batch comes next), fetch (here or by workers, in order) and
// transfer (to the device). It also holds the position that GradientState shows while the caller works on a batch.
//
// The plan runs ahead of the data by indices alone, so the last batch is known to be the last without reading
// any sample ahead. A batch that is there when the loop gets the one before is sent to the device already.
// The functions that plan and fetch come from map_loader.h, stream_loader.h and loader_impl.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/training/gradient_state.h"

namespace hasten::data {

class WorkerPool;

namespace detail {

class FetchQueue;

/// This rank's next batch: the indices to fetch. If planning means reading (streams, dispatch), it is the data itself.
struct PlannedBatch {
  ShardedBatch shard;
  AnyBatch ready = {};
};

/// The first stage: the next batch, or nothing at the end.
using PlanStage = std::function<std::optional<PlannedBatch>()>;

/// The second stage: reads samples with a worker's dataset.
struct FetchStage {
  std::function<AnyBatch(size_t worker, const Indices&)> fetch = {};
  /// Null: fetched by the caller, when it is its turn.
  WorkerPool* workers = nullptr;
  /// Batches under way at once, 1 without workers.
  size_t max_jobs = 1;
  bool enforce_ordering = true;
  std::optional<std::chrono::milliseconds> timeout = {};
};

/// The third stage. All unset: a batch stays where it is.
struct TransferStage {
  /// On the thread that fetched the batch, at once.
  std::function<AnyBatch(const AnyBatch&)> pin = {};
  /// Starts its way. On the loop's thread, as receive.
  std::function<AnyBatch(const AnyBatch&)> send = {};
  /// Before the loop gets it. Where it is set, a batch is sent while the loop has the one before.
  std::function<void(const AnyBatch&)> receive = {};
};

/// The remainder at the last batch.
enum class LastRemainder {
  kIfShort,  ///< the samples of a step that is not full, else 0; its earlier value with drop_last
  kAlways,   ///< the samples of the step: dispatched batches
  kAsBefore  ///< its earlier value: sharded streams
};

struct RemainderRule {
  /// The remainder before the last batch: the length modulo total_batch_size; -1 for drop_last.
  int64_t before_last = -1;
  /// Samples of a full step of all ranks. The last batch's remainder is 0 if it is one. 0: batches are of any size, and
  /// a step is full if no sample was given once more.
  size_t total_batch_size = 1;
  bool drop_last = false;
  LastRemainder at_last = LastRemainder::kIfShort;
};

struct PipelineStages {
  PlanStage plan = {};
  FetchStage fetch = {};
  TransferStage transfer = {};
  RemainderRule remainder = {};
  std::shared_ptr<training::GradientState> gradient_state = {};
  /// Called with the progress of the epoch's order when a batch is given, and with nothing when the pass has ended.
  std::function<void(std::optional<size_t> end)> received = {};
  /// Called with an error before the loop gets it.
  std::function<void(const std::exception& error)> failed = {};
  Origin origin{"data"};
  /// Keeps alive what the functions above use.
  std::shared_ptr<void> owner = {};
};

/// A batch that one rank reads for all, and the samples of the order up to its end, from the epoch's start.
struct BaseBatch {
  AnyBatch batch;
  size_t end = 0;
};
using ReadBase = std::function<std::optional<BaseBatch>()>;

class EpochPipeline {
 public:
  explicit EpochPipeline(PipelineStages stages);
  EpochPipeline(const EpochPipeline&) = delete;
  EpochPipeline& operator=(const EpochPipeline&) = delete;
  ~EpochPipeline();

  /// The next batch, or the end of the pass.
  /// Blocks: until it is fetched. Throws: DataError of the dataset or of a timeout (all batches before
  /// were given, and the pass has ended); UsageError if the loader began another pass.
  void advance();
  /// Ends the pass early because the loader begins another.
  void supersede() noexcept;
  const Origin& origin() const noexcept { return stages_.origin; }

  bool at_end() const noexcept { return !batch_ && !superseded_; }
  const AnyBatch& batch() const noexcept { return batch_; }
  /// Samples of the order up to the end of the batch in hand, from the epoch's start.
  size_t end() const noexcept { return given_.end; }
  const training::LoaderPosition& position() const noexcept { return position_; }

 private:
  void close() noexcept;
  bool plan_one();
  void plan_ahead(size_t count);
  void take_here();
  void take_from_workers();
  void transfer();
  void look_ahead();

  PipelineStages stages_;
  training::LoaderPosition position_;
  std::unique_ptr<FetchQueue> queue_;
  AnyBatch batch_;
  ShardedBatch given_;
  std::exception_ptr plan_error_;
  bool sent_ = false;
  bool superseded_ = false;
};

/// Throws: UsageError, always: a loop has gone on behind the last batch.
[[noreturn]] void throw_behind_last_batch(const EpochPipeline* pass);

}  // namespace detail

/// Input iterator over a pass; copies share it, and the last copy to go ends it. As for torch's loaders, an iterator at
/// the end throws UsageError where a batch or the next one is asked for.
template <class Batch>
class PassIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using pointer = Batch*;
  using reference = Batch&;

  /// The end.
  PassIterator() = default;
  explicit PassIterator(std::shared_ptr<detail::EpochPipeline> pass) : pass_(std::move(pass)) {}

  Batch& operator*() const { return detail::batch_in<Batch>(pass().batch()); }
  Batch* operator->() const { return &**this; }
  PassIterator& operator++() {
    pass().advance();
    return *this;
  }
  void operator++(int) { pass().advance(); }
  /// As for torch's loaders: only "at the end or not" is worth asking.
  friend bool operator==(const PassIterator& a, const PassIterator& b) {
    return a.at_end() ? b.at_end() : a.pass_ == b.pass_;
  }

 private:
  bool at_end() const noexcept { return !pass_ || pass_->at_end(); }
  detail::EpochPipeline& pass() const {
    if (at_end()) detail::throw_behind_last_batch(pass_.get());
    return *pass_;
  }
  std::shared_ptr<detail::EpochPipeline> pass_;
};

}  // namespace hasten::data
