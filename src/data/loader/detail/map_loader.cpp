// See map_loader.h.
#include "hasten/data/loader/detail/map_loader.h"

#include <algorithm>

#include "data/loader/detail/recorded_epoch.h"
#include "data/loader/detail/verified_pass.h"
#include "data/loader/detail/worker_pool.h"
#include "hasten/core/error.h"
#include "hasten/data/sampler/worker_random.h"
#include "hasten/process/random.h"

namespace hasten::data::detail {
namespace {

// Where one process computes the shares of several ranks, the order is drawn apart from the program's draws, as ranks
// draw it.
void draw_apart(EpochStart& start) {
  const auto* recorder = training::verify_recorder();
  if (recorder == nullptr || recorder->num_shares() == 1 || start.position > 0 || !start.generator.empty()) return;
  const at::Tensor state = process::capture_random_state().cpu;
  const auto* bytes = state.const_data_ptr<uint8_t>();
  start.generator.assign(bytes, bytes + state.numel());
}

}  // namespace

MapLoader::MapLoader(const torch::data::DataLoaderOptions& options, const BatchOperations& operations,
                     LoaderFacts facts, std::unique_ptr<SampleSource> samples, std::unique_ptr<AnySampler> sampler)
    : LoaderImpl(options, operations),
      facts_(facts),
      samples_(std::move(samples)),
      dataset_length_(samples_->size()),
      source_(std::move(sampler), options_.batch_size, options_.drop_last, dataset_length_) {}

MapLoader::~MapLoader() = default;

void MapLoader::prepare(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
                        const LoaderOptions& own) {
  LoaderFacts facts = facts_;
  facts.batch_size = source_.batch_size();
  facts.keeps_position = is_ordered();
  if (!adopt(process, std::move(gradient_state), own, facts)) return;
  if (own.synchronizes(RngType::kGenerator)) share_order(process.group());
  if (own.use_seedable_sampler) source_.use_seedable(own.data_seed);
  if (own.drop_last) source_.drop_last();
}

size_t MapLoader::total_batch_size() const noexcept {
  return batch_size_or_largest() * (splits() ? 1 : world_size());
}

size_t MapLoader::num_indices() const {
  const auto length = source_.size();
  if (!length) throw_unknown_size(origin());
  return *length;
}

size_t MapLoader::size(size_t skip) const {
  const size_t size = whole_size();
  return size > skip ? size - skip : 0;
}

std::shared_ptr<EpochPipeline> MapLoader::begin(size_t skip) {
  if (const auto older = pass_.lock()) older->supersede();
  if (workers_) workers_->drop_queued();
  start_workers();
  require_all(source_.shares());
  synchronize_generators();
  EpochStart start = epochs_.begin();
  draw_apart(start);
  set_epoch(start.epoch);
  record_epoch(start.epoch);
  if (start.position > 0) {
    skip = 0;  // it was skipped before the state was taken
  } else if (source_.seekable() && !source_.sampler().traits().gives_batches) {
    start.position = std::exchange(skip, 0) * total_batch_size();
  }
  auto pass =
      std::make_shared<EpochPipeline>(dispatches() ? dispatched_stages(skip, start) : sharded_stages(skip, start));
  pass_ = pass;
  pass->advance();
  return pass;
}

LoaderState MapLoader::state() const {
  if (!is_ordered()) throw_unordered_state(origin());
  LoaderState state = epochs_.state();
  state.seed = source_.seed();
  state.num_samples = source_.size().value_or(0);
  if (state.position > 0 && state.generator.empty()) state.generator = source_.generator();
  return state;
}

void MapLoader::load_state(const LoaderState& given) {
  const LoaderState state = counted_in_samples(given, batch_size_or_largest());
  check_state(state, {source_.seed(), source_.size(), source_.draws()}, origin());
  source_.adopt_seed(state.seed);
  epochs_.load(state);
}

size_t MapLoader::batch_size_or_largest() const noexcept {
  if (!source_.sampler().traits().gives_batches) return options_.batch_size;
  return source_.batch_size().value_or(source_.sampler().largest_batch());
}

size_t MapLoader::whole_size() const {
  const BatchShardOptions shard = this->shard(source_.batch_size());
  const AnySampler& sampler = source_.sampler();
  if (!sampler.traits().gives_batches) {
    const size_t full = num_indices() / options_.batch_size, rest = num_indices() % options_.batch_size;
    const size_t num_batches = full + (rest > 0 && !options_.drop_last ? 1 : 0);
    if (dispatches()) return dispatched_length(num_batches);
    return shard_length(num_batches, num_batches > full ? rest : options_.batch_size, shard);
  }
  if (dispatches()) return dispatched_length(sampler.num_batches());
  if (!shard.split_batches) return shard_length(sampler.num_batches(), batch_size_or_largest(), shard);
  size_t size = 0;
  for (size_t i = 0; i < sampler.num_batches(); ++i) size += shard_length(1, sampler.batch_length(i), shard);
  return size;
}

void MapLoader::start_workers() {
  if (options_.workers == 0 || workers_ || (dispatches() && process_->rank() > 0)) return;
  samples_->copy_for(options_.workers);
  workers_ = std::make_unique<WorkerPool>(options_.workers);
}

void MapLoader::set_epoch(uint64_t epoch) {
  if (!samples_->takes_epoch()) return;
  if (workers_) workers_->quiesce();  // a job of an older pass may still be reading
  samples_->set_epoch(epoch);
}

// Planning by indices and fetching them, for the ranks of `shard`.
PipelineStages MapLoader::reading(const BatchShardOptions& shard, size_t skip, const EpochStart& start) {
  const bool fills = shard.even_batches && !shard.drop_last;
  const size_t round = shard.split_batches ? 1 : static_cast<size_t>(shard.world_size);
  ShardStart shard_start{start.position, source_.begin(start, fills ? round : 0)};
  const auto next_indices = [this] { return source_.next(); };
  PipelineStages stages;
  stages.origin = origin();
  stages.owner = shared_from_this();
  const uint64_t seed = own_.data_seed.value_or(source_.seed().value_or(0));
  stages.fetch = {.fetch =
                      [this, origin = stages.origin, seed, epoch = start.epoch](size_t worker, const Indices& indices) {
                        const WorkerScope scope(seed, epoch, indices);
                        return samples_->fetch(worker, indices, origin);
                      },
                  .workers = workers_.get(),
                  .max_jobs = options_.max_jobs,
                  .enforce_ordering = options_.enforce_ordering,
                  .timeout = options_.timeout};
  if (auto* recorder = training::verify_recorder(); recorder && !dispatches()) {
    const auto pass =
        std::make_shared<VerifiedPass>(*recorder, operations_, prepared(), process_ ? process_->rank() : 0);
    const auto read = [fetch = stages.fetch.fetch](const Indices& indices) { return fetch(0, indices); };
    pass->plan(stages, SharePlan(shard, pass->takes_all(), next_indices, shard_start), skip, read, nullptr);
    return stages;
  }
  stages.plan =
      [skip, plan = BatchShard(shard, next_indices, std::move(shard_start))]() mutable -> std::optional<PlannedBatch> {
    for (; skip > 0 && plan.next(); --skip) {
    }
    auto next = plan.next();
    if (!next) return std::nullopt;
    return PlannedBatch{std::move(*next)};
  };
  return stages;
}

PipelineStages MapLoader::sharded_stages(size_t skip, const EpochStart& start) {
  PipelineStages stages = reading(shard(source_.batch_size()), skip, start);
  show(stages);
  stages.remainder.total_batch_size = source_.batch_size() ? total_batch_size() : 0;
  if (const auto length = source_.size(); length && source_.batch_size() && !options_.drop_last) {
    const size_t left = *length > start.position ? *length - start.position : 0;
    stages.remainder.before_last = static_cast<int64_t>(left % std::max<size_t>(1, total_batch_size()));
  }
  return stages;
}

PipelineStages MapLoader::dispatched_stages(size_t skip, const EpochStart& start) {
  // All ranks begin the order, so that samplers draw the same numbers. Only rank 0 goes through it.
  auto inner = reading(shard(source_.batch_size()), skip * (splits() ? 1 : world_size()), start);
  std::shared_ptr<EpochPipeline> base;
  if (process_->rank() == 0) base = std::make_shared<EpochPipeline>(std::move(inner));
  auto read = [base]() -> std::optional<BaseBatch> {
    base->advance();
    if (base->at_end()) return std::nullopt;
    return BaseBatch{base->batch(), base->end()};
  };
  std::function<AnyBatch()> first_rows;
  if (start.position > 0 || skip > 0) {
    first_rows = [this, start] { return samples_->fetch(0, first_indices(start), origin()); };
  }
  return dispatched(dispatcher(start.position, std::move(read), std::move(first_rows)), shared_from_this());
}

// The epoch's first indices, from a copy of the order: the pass itself goes on elsewhere.
Indices MapLoader::first_indices(const EpochStart& start) const {
  IndexSource again = source_.copy();
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

}  // namespace hasten::data::detail
