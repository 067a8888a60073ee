// See verified_pass.h.
#include "data/loader/detail/verified_pass.h"

#include <algorithm>

#include "hasten/core/error.h"

namespace hasten::data::detail {

/// The source's batches that some rank has not taken yet.
struct SharePlan::Feed {
  BatchShard::Source source;
  std::deque<Indices> kept = {};
  size_t num_dropped = 0;
  bool ended = false;
  std::vector<size_t> taken = {};

  std::optional<Indices> take(size_t rank) {
    const size_t place = taken[rank] - num_dropped;
    if (place == kept.size()) {
      auto next = ended ? std::nullopt : source();
      ended = !next;
      if (!next) return std::nullopt;
      kept.push_back(*std::move(next));
    }
    ++taken[rank];
    Indices batch = kept[place];
    while (!kept.empty() && std::all_of(taken.begin(), taken.end(), [this](size_t at) { return at > num_dropped; })) {
      kept.pop_front();
      ++num_dropped;
    }
    return batch;
  }
};

SharePlan::SharePlan(const BatchShardOptions& options, bool all, BatchShard::Source source, const ShardStart& start)
    : feed_(std::make_shared<Feed>(Feed{std::move(source)})) {
  const int first = all ? 0 : options.rank, end = all ? options.world_size : options.rank + 1;
  feed_->taken.assign(static_cast<size_t>(end - first), 0);
  for (int rank = first; rank < end; ++rank) {
    BatchShardOptions own = options;
    own.rank = rank;
    const auto place = static_cast<size_t>(rank - first);
    shards_.emplace_back(rank, BatchShard(
                                   own, [feed = feed_, place] { return feed->take(place); }, start));
  }
}

std::vector<SharePlan::Share> SharePlan::draw() {
  std::vector<Share> step;
  for (auto& [rank, shard] : shards_) {
    if (auto batch = shard.next()) step.push_back({rank, *std::move(batch)});
  }
  return step;
}

std::vector<SharePlan::Share> SharePlan::next() {
  auto step = ahead_ ? *std::exchange(ahead_, std::nullopt) : draw();
  return step;
}

bool SharePlan::at_end() {
  if (!ahead_) ahead_ = draw();
  return ahead_->empty();
}

VerifiedPass::VerifiedPass(training::VerifyRecorder& recorder, const BatchOperations& operations, bool is_prepared,
                           int rank)
    : recorder_(recorder), operations_(operations), is_prepared_(is_prepared), rank_(rank) {}

void VerifiedPass::plan(PipelineStages& stages, SharePlan shares, size_t skip, Read read,
                        std::function<void(size_t end)> forget) {
  stages.fetch.workers = nullptr;
  stages.fetch.max_jobs = 1;
  stages.plan = [self = shared_from_this(), shares = std::move(shares), skip, read = std::move(read),
                 forget = std::move(forget)]() mutable -> std::optional<PlannedBatch> {
    for (; skip > 0; --skip) {
      const auto step = shares.next();
      if (!step.empty() && forget) forget(step.back().batch.end);
    }
    if (self->ready_.empty()) {
      self->plan_step(shares, read);
      if (self->ready_.empty()) return std::nullopt;
      if (forget) forget(self->ready_.back().planned.shard.end);
      if (self->takes_all() && self->recorder_.options().whole) {
        self->put_together();
      } else {
        for (const auto& given : self->ready_) self->notes_.push_back({given.note});
      }
    }
    auto next = std::move(self->ready_.front().planned);
    self->ready_.pop_front();
    return next;
  };
  report(stages);
}

void VerifiedPass::plan_step(SharePlan& shares, const Read& read) {
  auto step = shares.next();
  for (size_t i = 0; i < step.size(); ++i) {
    auto& [rank, batch] = step[i];
    PlannedBatch planned{batch, read(batch.indices)};
    training::VerifyBatch note{.share = takes_all() ? rank : rank_,
                               .ends_step = i + 1 == step.size(),
                               .is_prepared = is_prepared_,
                               .positions = batch.indices,
                               .bytes = hash_of(planned.ready)};
    ready_.push_back({std::move(planned), std::move(note)});
  }
  if (takes_all() && shares.at_end()) {
    for (auto& given : ready_) given.note.ends_pass = true;
  }
}

// One batch of those of a step.
void VerifiedPass::put_together() {
  std::vector<training::VerifyBatch> notes;
  std::vector<AnyBatch> batches;
  Given joined = ready_.front();
  auto& shard = joined.planned.shard;
  shard.indices.clear();
  shard.num_local_valid = 0;
  for (auto& given : ready_) {
    notes.push_back(given.note);
    batches.push_back(given.planned.ready);
    const auto& own = given.planned.shard;
    shard.indices.insert(shard.indices.end(), own.indices.begin(), own.indices.end());
    shard.num_local_valid += own.num_local_valid;
  }
  if (operations_.join == nullptr) {
    throw UsageError(Origin{"verify"},
                     "batches of this type cannot be put together. Use hasten verify without --whole, or name the "
                     "batch's fields by hasten_fields.");
  }
  joined.planned.ready = operations_.join(batches);
  ready_.clear();
  ready_.push_back(std::move(joined));
  notes_.push_back(std::move(notes));
}

void VerifiedPass::observe(PipelineStages& stages) {
  stages.plan = [self = shared_from_this(), plan = std::move(stages.plan)]() -> std::optional<PlannedBatch> {
    auto next = plan();
    if (!next) return next;
    self->notes_.push_back({{.share = self->rank_,
                             .is_prepared = self->is_prepared_,
                             .positions = next->shard.indices,
                             .bytes = self->hash_of(next->ready)}});
    return next;
  };
  report(stages);
}

void VerifiedPass::report(PipelineStages& stages) {
  stages.received = [self = shared_from_this(), received = std::move(stages.received)](std::optional<size_t> end) {
    if (received) received(end);
    if (!end || self->notes_.empty()) return;
    auto& notes = self->notes_.front();
    for (auto& note : notes) {
      if (notes.size() > 1) note.ends_step = true;
      self->recorder_.note_batch(note);
    }
    self->notes_.pop_front();
  };
}

uint64_t VerifiedPass::hash_of(const AnyBatch& batch) const {
  if (!batch || operations_.tensors_of == nullptr) return 0;
  uint64_t hash = 1;
  for (const at::Tensor& tensor : operations_.tensors_of(batch)) hash = training::add_to_hash(hash, tensor);
  return hash;
}

}  // namespace hasten::data::detail
