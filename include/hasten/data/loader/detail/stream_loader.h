// What all handles of one loader over a stream share: torch::data's datasets that are asked for "the next n
// samples" (stream, stateful and chunk datasets). Use loader.h; this is its inside.
//
// Every rank reads the whole stream and keeps its part, by the same rules as for datasets with positions
// (batch_shard.h over the places in the stream), unless rank 0 dispatches. A stream has one place, so one
// thread at most reads ahead, and the order never depends on workers.
#pragma once

#include <torch/data/samplers/stream.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/log.h"
#include "hasten/data/batch/detail/batch_rows.h"
#include "hasten/data/loader/detail/batch_window.h"
#include "hasten/data/loader/detail/loader_impl.h"
#include "hasten/data/loader/detail/read_ahead.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data {

/// Stands where a loader over a dataset with positions has its sampler: the stream itself says what comes
/// next.
struct Streaming {};

namespace detail {

[[noreturn]] void throw_stream_error(const Origin& origin, size_t position);
void warn_reading_past(const Origin& origin, size_t position);

template <class Dataset, class Sampler>
class StreamLoaderImpl : public LoaderImpl, public std::enable_shared_from_this<StreamLoaderImpl<Dataset, Sampler>> {
  static constexpr bool kCounted = std::is_same_v<Sampler, torch::data::samplers::StreamSampler>;
  static_assert(kCounted || std::is_same_v<Sampler, Streaming>,
                "a stream takes no sampler but torch's StreamSampler, which says how long an epoch is");

 public:
  using Batch = typename stream_batch<typename Dataset::BatchType>::type;

  StreamLoaderImpl(Dataset dataset, Sampler sampler, const torch::data::DataLoaderOptions& options)
      : LoaderImpl(options),
        dataset_(std::move(dataset)),
        sampler_(std::move(sampler)),
        dataset_length_(std::as_const(dataset_).size()) {}

  void prepare(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
               const LoaderOptions& own) {
    adopt(process, std::move(gradient_state), own,
          {.batch_size = options_.batch_size,
           .can_be_placed = can_be_placed<Batch>,
           .can_be_dispatched = can_be_dispatched<Batch>,
           .has_rows = has_rows<Batch>,
           .is_stream = true});
  }

  std::optional<size_t> dataset_length() const noexcept { return dataset_length_; }
  const Dataset& dataset() const noexcept { return dataset_; }
  Sampler& sampler() noexcept { return sampler_; }
  size_t total_batch_size() const noexcept { return options_.batch_size * (splits() ? 1 : world_size()); }
  size_t num_indices() const {
    if (!dataset_length_) throw_unknown_size(origin());
    return *dataset_length_;
  }

  size_t size(size_t skip) const {
    const size_t full = num_indices() / options_.batch_size, rest = num_indices() % options_.batch_size;
    const size_t num_batches = full + (rest > 0 && !options_.drop_last ? 1 : 0);
    const size_t last = num_batches > full ? rest : options_.batch_size;
    const size_t size = dispatches() ? dispatched_length(num_batches)
                                     : shard_length(num_batches, last, shard(options_.batch_size));
    return size > skip ? size - skip : 0;
  }

  std::shared_ptr<EpochPipeline<Batch>> begin(size_t skip) {
    if (const auto older = pass_.lock()) older->supersede();
    reader_.reset();
    require_all(false);
    synchronize_generators();
    const EpochStart start = epochs_.begin();
    set_epoch_of(dataset_, start.epoch);
    const size_t to_skip = start.position > 0 ? 0 : skip;
    auto pass = std::make_shared<EpochPipeline<Batch>>(dispatches() ? dispatched_parts(to_skip, start.position)
                                                           : sharded_parts(to_skip, start.position));
    pass_ = pass;
    pass->advance();
    return pass;
  }

  LoaderState state() const {
    LoaderState state = epochs_.state();
    state.num_samples = dataset_length_.value_or(0);
    return state;
  }
  void load_state(const LoaderState& state) {
    check_state(state, {0, dataset_length_}, origin());
    epochs_.load(state);
  }

 private:
  static constexpr bool kSeekable = can_seek<Dataset>::value;

  /// Places in the stream, and the batches that lie there.
  struct Places {
    size_t next = 0;
    BatchWindow<Batch> window = {};
    std::optional<Batch> held = {};
  };

  void rewind() {
    reader_.reset();  // before the dataset is touched: its thread reads it
    if constexpr (Dataset::is_stateful) dataset_.reset();
    if constexpr (kCounted) sampler_.reset();
    start_reader();
  }

  /// Only for streams that can seek: what comes next is at `position`.
  void jump(Places& places, size_t position) {
    reader_.reset();
    seek_in(dataset_, position);
    if constexpr (kCounted) sampler_.next(position - places.next);
    places.next = position;
    places.held.reset();
    start_reader();
  }

  void start_reader() {
    reader_ = std::make_unique<ReadAhead<Batch>>([this] { return read_here(); }, options_.workers,
                                                 options_.max_jobs, options_.timeout, origin());
  }

  /// Empty batches are passed over; of a stream that has no other end the first of them is the end.
  std::optional<Batch> read_here() {
    for (std::optional<Batch> batch;; batch.reset()) {
      if constexpr (kCounted) {
        if (auto request = sampler_.next(options_.batch_size)) batch = dataset_.get_batch(request->size());
      } else {
        batch = dataset_.get_batch(options_.batch_size);
      }
      if (!batch || rows_of(*batch) > 0) return batch;
      if constexpr (!kCounted && std::is_same_v<Batch, typename Dataset::BatchType>) return std::nullopt;
    }
  }

  size_t rows_of(const Batch& batch) const {
    if constexpr (has_rows<Batch>) {
      return num_rows(batch);
    } else {
      return options_.batch_size;  // a type of one's own, in a world of one: counted as full
    }
  }

  std::optional<Batch> read(Places& places) {
    try {
      return reader_->next();
    } catch (const StreamTimeout&) {
      throw;
    } catch (...) {
      throw_stream_error(origin(), places.next);
    }
  }

  /// The next batch of the stream; with drop_last, not a short one that is the last.
  std::optional<Batch> next_batch(Places& places) {
    auto batch = places.held ? std::exchange(places.held, std::nullopt) : read(places);
    if (batch && options_.drop_last && rows_of(*batch) < options_.batch_size) {
      places.held = read(places);
      if (!places.held) return std::nullopt;
    }
    return batch;
  }

  std::optional<Indices> next_places(Places& places) {
    auto batch = next_batch(places);
    if (!batch) return std::nullopt;
    Indices indices(rows_of(*batch));
    std::iota(indices.begin(), indices.end(), places.next);
    places.window.add(places.next, indices.size(), std::move(*batch));
    places.next += indices.size();
    return indices;
  }

  PipelineStages<Batch> sharded_parts(size_t skip, size_t position) {
    rewind();
    auto places = std::make_shared<Places>();
    const BatchShardOptions shard = this->shard(options_.batch_size);
    const bool fills = shard.even_batches && !shard.drop_last;
    places->window.keep_first(fills ? total_batch_size() : 0);
    std::vector<Indices> head;
    auto rest = std::make_shared<std::deque<Indices>>();
    if (position > 0) head = go_to(*places, position, fills ? (splits() ? 1 : world_size()) : 0, *rest);
    auto source = [this, places, rest]() -> std::optional<Indices> {
      if (rest->empty()) return next_places(*places);
      auto front = std::move(rest->front());
      rest->pop_front();
      return front;
    };
    PipelineStages<Batch> parts;
    show(parts);
    parts.owner = this->shared_from_this();
    parts.plan = [skip, places, plan = BatchShard(shard, source, {position, std::move(head)})]() mutable
        -> std::optional<PlannedBatch<Batch>> {
      std::optional<ShardedBatch> next;
      for (; (next = plan.next()) && skip > 0; --skip) places->window.forget_before(next->end);
      if (!next) return std::nullopt;
      PlannedBatch<Batch> planned{std::move(*next)};
      planned.ready = places->window.pick(planned.shard.indices);
      places->window.forget_before(planned.shard.end);
      return planned;
    };
    parts.total_batch_size = total_batch_size();
    parts.last_remainder = LastRemainder::kAsBefore;
    if (dataset_length_ && !options_.drop_last) {
      // Accelerate takes the length of a rank's evened-out part here, which full steps always divide.
      parts.remainder = world_size() > 1 ? 0 : static_cast<int64_t>(*dataset_length_ % total_batch_size());
    }
    return parts;
  }

  /// Puts the stream to a position; gives the epoch's first `round` batches, and in `rest` those already read
  /// that lie behind the position.
  std::vector<Indices> go_to(Places& places, size_t position, size_t round, std::deque<Indices>& rest) {
    std::vector<Indices> head;
    if constexpr (!kSeekable) warn_reading_past(origin(), position);
    const auto read_on = [&] {
      auto batch = next_places(places);
      if (!batch) return false;
      const auto unseen = std::lower_bound(batch->begin(), batch->end(), position);
      if (unseen != batch->end()) rest.emplace_back(unseen, batch->end());
      if (head.size() < round) head.push_back(*batch);
      places.window.forget_before(position);
      return true;
    };
    while (head.size() < round && read_on()) {
    }
    if constexpr (kSeekable) {
      if (places.next < position) jump(places, position);
    }
    while (places.next < position && read_on()) {
    }
    return head;
  }

  PipelineStages<Batch> dispatched_parts(size_t skip, size_t position) {
    if constexpr (can_be_dispatched<Batch>) {
      auto places = std::make_shared<Places>();
      const bool reads = process_->rank() == 0;
      if (reads) rewind();
      size_t begin = 0;
      std::function<Batch()> first_rows;
      if constexpr (kSeekable) {
        begin = position;
        if (reads && position > 0) first_rows = jump_behind_first_rows(*places, position);
      } else if (reads && position > 0) {
        warn_reading_past(origin(), position);
      }
      auto dispatcher = this->template dispatcher<Batch>(
          begin, [this, places] { return next_counted(*places); }, std::move(first_rows));
      dispatcher->pass_over(skip, position);
      return dispatched<Batch>(std::move(dispatcher), this->shared_from_this());
    } else {
      throw InternalError(origin(), "a stream whose batches cannot be sent is dispatched.");
    }
  }

  std::optional<BaseBatch<Batch>> next_counted(Places& places) {
    auto batch = next_batch(places);
    if (!batch) return std::nullopt;
    places.next += rows_of(*batch);
    return BaseBatch<Batch>{std::move(*batch), places.next};
  }

  /// Reads what may have to fill up the last step, then goes to the position.
  std::function<Batch()> jump_behind_first_rows(Places& places, size_t position) {
    std::vector<Batch> first;
    while (places.next < world_size()) {
      auto next = next_counted(places);
      if (!next) break;
      first.push_back(std::move(next->batch));
    }
    jump(places, position);
    return [first = std::move(first)] { return join_rows(first); };
  }

  Dataset dataset_;
  Sampler sampler_;
  const std::optional<size_t> dataset_length_;
  std::weak_ptr<EpochPipeline<Batch>> pass_;
  std::unique_ptr<ReadAhead<Batch>> reader_;  // last: its thread ends before what it uses
};

}  // namespace detail

}  // namespace hasten::data
