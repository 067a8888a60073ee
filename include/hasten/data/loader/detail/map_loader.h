// What all handles of one loader over a map dataset share: dataset, sampler, workers. Use loader.h; this is
// its inside. What every kind of loader has in common is loader_impl.h's, streams are stream_loader.h's.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/data/loader/detail/fetch.h"
#include "hasten/data/loader/detail/loader_impl.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/detail/index_source.h"
#include "hasten/data/sampler/detail/traits.h"
#include "hasten/data/sampler/worker_random.h"

namespace hasten::data::detail {

template <class Dataset, class Sampler>
class MapLoaderImpl : public LoaderImpl, public std::enable_shared_from_this<MapLoaderImpl<Dataset, Sampler>> {
  static_assert(!Dataset::is_stateful &&
                    std::is_constructible_v<typename Dataset::BatchRequestType, Indices&>,
                "data::loader with a sampler takes map datasets, asked by positions (ArrayRef<size_t>)");
  static_assert(std::is_same_v<typename Sampler::BatchRequestType, Indices>,
                "data::loader takes samplers that give positions (std::vector<size_t>)");
  static constexpr bool kDispatchable =
      can_be_dispatched<typename Dataset::BatchType> && std::is_copy_constructible_v<Sampler>;

 public:
  using Batch = typename Dataset::BatchType;

  MapLoaderImpl(Dataset dataset, Sampler sampler, const torch::data::DataLoaderOptions& options)
      : LoaderImpl(options),
        dataset_(std::move(dataset)),
        dataset_length_(std::as_const(dataset_).size()),
        source_(std::move(sampler), options_.batch_size, options_.drop_last, dataset_length_) {}

  void prepare(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
               const LoaderOptions& own) {
    const LoaderFacts facts{.batch_size = source_.batch_size(),
                            .sampler_spreads_itself = gives_a_ranks_part<Sampler>::value,
                            .can_be_placed = can_be_placed<Batch>,
                            .can_be_dispatched = kDispatchable,
                            .keeps_position = is_ordered()};
    if (!adopt(process, std::move(gradient_state), own, facts)) return;
    if (own.synchronizes(RngType::kGenerator)) share_order(process.group());
    if (own.use_seedable_sampler) source_.use_seedable(own.data_seed);
  }

  void share_order(const comm::Group& group) { source_.share(group); }
  std::optional<size_t> dataset_length() const noexcept { return dataset_length_; }
  const Dataset& dataset() const noexcept { return dataset_; }
  Sampler& sampler() noexcept { return source_.sampler(); }
  size_t total_batch_size() const noexcept { return batch_size_or_largest() * (splits() ? 1 : world_size()); }

  size_t num_indices() const {
    const auto length = source_.size();
    if (!length) throw_unknown_size(origin());
    return *length;
  }

  size_t size(size_t skip) const {
    const size_t size = whole_size();
    return size > skip ? size - skip : 0;
  }

  std::shared_ptr<EpochPipeline<Batch>> begin(size_t skip) {
    if (const auto older = pass_.lock()) older->supersede();
    if (workers_) workers_->drop_queued();
    start_workers();
    require_all(source_.shares());
    synchronize_generators();
    EpochStart start = epochs_.begin();
    set_epoch(start.epoch);
    if (start.position > 0) {
      skip = 0;  // it was skipped before the state was taken
    } else if (source_.seekable() && !gives_batches<Sampler>) {
      start.position = std::exchange(skip, 0) * total_batch_size();
    }
    auto pass =
        std::make_shared<EpochPipeline<Batch>>(dispatches() ? dispatched_parts(skip, start) : parts(skip, start));
    pass_ = pass;
    pass->advance();
    return pass;
  }

  LoaderState state() const {
    if (!is_ordered()) throw_unordered_state(origin());
    LoaderState state = epochs_.state();
    state.seed = source_.seed();
    state.num_samples = source_.size().value_or(0);
    if (state.position > 0 && state.generator.empty()) state.generator = source_.generator();
    return state;
  }

  void load_state(const LoaderState& state) {
    check_state(state, {source_.seed(), source_.size(), source_.draws()}, origin());
    source_.adopt_seed(state.seed);
    epochs_.load(state);
  }

 private:
  size_t batch_size_or_largest() const noexcept {
    if constexpr (gives_batches<Sampler>) {
      return source_.batch_size().value_or(source_.sampler().largest_batch());
    } else {
      return options_.batch_size;
    }
  }

  size_t whole_size() const {
    const BatchShardOptions shard = this->shard(source_.batch_size());
    if constexpr (gives_batches<Sampler>) {
      const Sampler& sampler = source_.sampler();
      if (dispatches()) return dispatched_length(sampler.num_batches());
      if (!shard.split_batches) return shard_length(sampler.num_batches(), batch_size_or_largest(), shard);
      size_t size = 0;
      for (size_t i = 0; i < sampler.num_batches(); ++i)
        size += shard_length(1, sampler.batch_length(i), shard);
      return size;
    } else {
      const size_t full = num_indices() / options_.batch_size, rest = num_indices() % options_.batch_size;
      const size_t num_batches = full + (rest > 0 && !options_.drop_last ? 1 : 0);
      if (dispatches()) return dispatched_length(num_batches);
      return shard_length(num_batches, num_batches > full ? rest : options_.batch_size, shard);
    }
  }

  void start_workers() {
    if (options_.workers == 0 || workers_ || (dispatches() && process_->rank() > 0)) return;
    for (size_t worker = 1; worker < options_.workers && !is_thread_safe<Dataset>::value; ++worker) {
      copies_.push_back(copy());
    }
    workers_ = std::make_unique<WorkerPool>(options_.workers);
  }

  std::unique_ptr<Dataset> copy() const {
    if constexpr (std::is_copy_constructible_v<Dataset>) {
      return std::make_unique<Dataset>(dataset_);
    } else {
      static_assert(is_thread_safe<Dataset>::value, "a dataset that is not thread-safe must be copyable");
      return nullptr;
    }
  }

  void set_epoch(uint64_t epoch) {
    if constexpr (takes_epoch<Dataset>::value) {
      if (workers_) workers_->quiesce();  // a job of an older pass may still be reading
      set_epoch_of(dataset_, epoch);
      for (auto& copy : copies_) set_epoch_of(*copy, epoch);
    }
  }

  /// Planning by indices and fetching them, for the ranks of `shard`.
  PipelineStages<Batch> reading(const BatchShardOptions& shard, size_t skip, const EpochStart& start) {
    const bool fills = shard.even_batches && !shard.drop_last;
    const size_t round = shard.split_batches ? 1 : static_cast<size_t>(shard.world_size);
    ShardStart shard_start{start.position, source_.begin(start, fills ? round : 0)};
    BatchShard plan(
        shard, [this] { return source_.next(); }, std::move(shard_start));
    PipelineStages<Batch> parts;
    parts.origin = origin();
    parts.owner = this->shared_from_this();
    parts.plan = [skip, plan = std::move(plan)]() mutable -> std::optional<PlannedBatch<Batch>> {
      for (; skip > 0 && plan.next(); --skip) {
      }
      auto next = plan.next();
      if (!next) return std::nullopt;
      return PlannedBatch<Batch>{std::move(*next)};
    };
    const uint64_t seed = own_.data_seed.value_or(source_.seed().value_or(0));
    parts.fetch = [this, origin = parts.origin, seed, epoch = start.epoch](size_t worker,
                                                                           const Indices& indices) {
      const WorkerScope scope(seed, epoch, indices);
      Dataset& dataset = worker == 0 || copies_.empty() ? dataset_ : *copies_[worker - 1];
      return data::fetch(dataset, indices, origin);
    };
    parts.workers = workers_.get();
    parts.max_jobs = options_.max_jobs;
    parts.enforce_ordering = options_.enforce_ordering;
    parts.timeout = options_.timeout;
    return parts;
  }

  PipelineStages<Batch> parts(size_t skip, const EpochStart& start) {
    PipelineStages<Batch> parts = reading(shard(source_.batch_size()), skip, start);
    show(parts);
    parts.total_batch_size = source_.batch_size() ? total_batch_size() : 0;
    if (const auto length = source_.size(); length && source_.batch_size() && !options_.drop_last) {
      const size_t left = *length > start.position ? *length - start.position : 0;
      parts.remainder = static_cast<int64_t>(left % std::max<size_t>(1, total_batch_size()));
    }
    return parts;
  }

  PipelineStages<Batch> dispatched_parts(size_t skip, const EpochStart& start) {
    if constexpr (kDispatchable) {
      // All ranks begin the order, so that what samplers draw stays the same; only rank 0 goes through it.
      auto inner = reading(shard(source_.batch_size()), skip * (splits() ? 1 : world_size()), start);
      std::shared_ptr<EpochPipeline<Batch>> base;
      if (process_->rank() == 0) base = std::make_shared<EpochPipeline<Batch>>(std::move(inner));
      auto read = [base]() -> std::optional<BaseBatch<Batch>> {
        base->advance();
        if (base->at_end()) return std::nullopt;
        return BaseBatch<Batch>{std::move(base->batch()), base->end()};
      };
      std::function<Batch()> first_rows;
      if (start.position > 0 || skip > 0) {
        first_rows = [this, start] { return data::fetch(dataset_, first_indices(start), origin()); };
      }
      return dispatched<Batch>(this->template dispatcher<Batch>(start.position, read, first_rows),
                               this->shared_from_this());
    } else {
      throw InternalError(origin(), "a loader whose batches cannot be sent is dispatched.");
    }
  }

  /// The epoch's first indices, from a copy of the order: the pass itself goes on elsewhere.
  Indices first_indices(const EpochStart& start) const {
    IndexSource<Sampler> again = source_;
    again.share(comm::Group());
    EpochStart from_start{start.epoch, 0, source_.generator()};
    again.begin(from_start, 0);
    Indices first;
    while (first.size() < world_size()) {
      const auto batch = again.next();
      if (!batch) break;
      first.insert(first.end(), batch->begin(), batch->end());
    }
    first.resize(std::min(first.size(), world_size()));
    return first;
  }

  Dataset dataset_;
  const std::optional<size_t> dataset_length_;
  IndexSource<Sampler> source_;
  std::weak_ptr<EpochPipeline<Batch>> pass_;
  std::vector<std::unique_ptr<Dataset>> copies_;
  std::unique_ptr<WorkerPool> workers_;  // last: its threads end before what they use
};

}  // namespace hasten::data::detail
