// The rules of batch_shard.h. A "round" is what all ranks get in one step: world_size whole batches, or one
// batch cut.
#include "hasten/data/sampler/batch_shard.h"

#include <algorithm>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::data {

namespace {

Origin origin_of(const BatchShardOptions& options) {
  return {"data", options.rank, options.world_size};
}

void check(const BatchShardOptions& options) {
  const Origin origin = origin_of(options);
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw UsageError(Origin{"data"}, "rank ", options.rank, " of a world of ", options.world_size,
                     ": ranks go from 0 to world_size - 1.");
  }
  if (options.batch_size == 0u) throw UsageError(origin, "batch_size = 0, expected at least 1.");
  if (!options.split_batches) return;
  if (!options.batch_size) {
    throw UsageError(origin, "split_batches = true cuts each batch into world_size = ", options.world_size,
                     " equal parts, but the batch size is not known. Give it, or use split_batches = false.");
  }
  if (*options.batch_size % options.world_size != 0) {
    throw UsageError(
        origin, "split_batches = true cuts each batch into equal parts, but batch_size = ", *options.batch_size,
        " is no multiple of world_size = ", options.world_size, ". Choose a multiple, or use split_batches = false.");
  }
}

}  // namespace

BatchShard::BatchShard(const BatchShardOptions& options, Source source, ShardStart start)
    : options_(options), source_(std::move(source)), head_(std::move(start.head)), position_(start.position) {
  check(options_);
}

std::optional<ShardedBatch> BatchShard::next() {
  if (over_) return std::nullopt;
  auto batch = options_.split_batches ? next_part() : next_whole();
  over_ = !batch;
  if (batch) batch->end = position_;
  return batch;
}

std::optional<Indices> BatchShard::pull() {
  if (held_) return std::exchange(held_, std::nullopt);
  if (ended_) return std::nullopt;
  auto batch = source_();
  ended_ = !batch;
  if (batch && batch->empty()) {
    throw UsageError(origin_of(options_), "the sampler gave an empty batch; at its end it must give no batch.");
  }
  return batch;
}

// `count` indices of the head, repeated as often as needed, from position `begin` on.
Indices BatchShard::padding(size_t begin, size_t count) const {
  Indices all;
  for (const auto& batch : head_) all.insert(all.end(), batch.begin(), batch.end());
  Indices result(count);
  for (size_t i = 0; i < count; ++i) result[i] = all[(begin + i) % all.size()];
  return result;
}

std::optional<ShardedBatch> BatchShard::next_whole() {
  const size_t world_size = options_.world_size, rank = options_.rank;
  const bool first_round = head_.empty();
  ShardedBatch result;
  size_t num_batches = 0, last_size = 0;
  for (; num_batches < world_size; ++num_batches) {
    auto batch = pull();
    if (!batch) break;
    last_size = batch->size();
    result.num_samples += last_size;
    if (first_round && evens_out()) head_.push_back(*batch);
    if (num_batches == rank) {
      result.num_local_valid = batch->size();
      result.indices = std::move(*batch);
    }
  }
  if (num_batches == 0) return std::nullopt;
  position_ += result.num_samples;
  bool whole = num_batches == world_size;
  // A short batch is the last one, unless an own sampler goes on behind it.
  if (whole && evens_out() && is_short(last_size)) whole = (held_ = pull()).has_value();
  if (whole) return result;
  if (!evens_out()) return options_.drop_last || result.indices.empty() ? std::nullopt : std::optional(result);

  result.padded = true;
  const size_t missing = is_short(last_size) ? *options_.batch_size - last_size : 0;
  if (rank + 1 == num_batches) {
    const Indices rest = padding(0, missing);
    result.indices.insert(result.indices.end(), rest.begin(), rest.end());
  } else if (rank >= num_batches) {
    const size_t nth = rank - num_batches;
    result.indices = options_.batch_size ? padding(missing + nth * *options_.batch_size, *options_.batch_size)
                                         : head_[nth % head_.size()];
  }
  return result;
}

std::optional<ShardedBatch> BatchShard::next_part() {
  const size_t full = *options_.batch_size, part = full / options_.world_size, begin = part * options_.rank;
  while (auto batch = pull()) {
    if (batch->size() > full) {
      throw UsageError(origin_of(options_), "the sampler gave ", batch->size(), " indices, batch_size = ", full,
                       ": split_batches = true can only cut batches of at most batch_size.");
    }
    const size_t num_samples = batch->size();
    const bool padded = num_samples < full && options_.even_batches;
    position_ += num_samples;
    if (head_.empty() && evens_out()) head_.push_back(*batch);
    if (num_samples < full && options_.drop_last) continue;
    if (padded) {
      const Indices rest = padding(0, full - num_samples);
      batch->insert(batch->end(), rest.begin(), rest.end());
    }
    if (begin >= batch->size()) continue;
    const auto first = batch->begin() + static_cast<std::ptrdiff_t>(begin);
    const auto size = static_cast<std::ptrdiff_t>(std::min(part, batch->size() - begin));
    const size_t own = num_samples > begin ? std::min(num_samples - begin, static_cast<size_t>(size)) : 0;
    return ShardedBatch{
        .indices = Indices(first, first + size), .num_samples = num_samples, .padded = padded, .num_local_valid = own};
  }
  return std::nullopt;
}

size_t shard_length(size_t num_batches, size_t last_size, const BatchShardOptions& options) {
  check(options);
  const size_t world_size = options.world_size, rank = options.rank;
  if (options.split_batches) {
    const bool short_end = num_batches > 0 && last_size < *options.batch_size;
    if (!short_end) return num_batches;
    const size_t begin = *options.batch_size / world_size * rank;
    const bool gives = !options.drop_last && (options.even_batches || last_size > begin);
    return num_batches - (gives ? 0 : 1);
  }
  const size_t rounds = num_batches / world_size, rest = num_batches % world_size;
  if (options.drop_last || rest == 0) return rounds;
  return rounds + (options.even_batches || rank < rest ? 1 : 0);
}

}  // namespace hasten::data
