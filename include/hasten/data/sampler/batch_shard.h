// Which batches of indices one rank gets out of the one global order: a pure decision, without torch and
// without data.
//
// Every rank draws the same global batches from the same sampler and keeps its own, so nothing is sent between ranks.
// The rules are those of Accelerate's BatchSamplerShard where it is right. docs/differences.md lists our differences,
// and docs/data.md shows the shares in a picture. loader.h and epoch_pipeline.h fetch the samples.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace hasten::data {

/// Positions of samples in a dataset, in the order in which they are wanted.
using Indices = std::vector<size_t>;

struct BatchShardOptions {
  int rank = 0;
  int world_size = 1;
  /// Samples of a full batch of the source; a smaller last one is filled up (even_batches). Unset: the
  /// batches of the source are of any size and are given as they are.
  std::optional<size_t> batch_size = {};
  /// false: whole batches go round the ranks, so that a step takes batch_size * world_size samples.
  /// true: each batch is cut into world_size parts, so that a step takes batch_size samples.
  bool split_batches = false;
  /// true: every rank gets as many batches, of one size, because samples of the first batches are given once
  /// more at the end. false: the last ranks may get a smaller last batch or one batch less.
  bool even_batches = true;
  /// Leave out what does not fill a batch on every rank. (The source itself leaves out its short last batch.)
  bool drop_last = false;
};

/// A rank's part of a step.
struct ShardedBatch {
  Indices indices = {};
  /// Samples that all ranks together get in this step, without those given once more to even out.
  size_t num_samples = 0;
  /// Whether in this step some rank is given samples once more.
  bool padded = false;
  /// Number of `indices` that are not given once more; they come first.
  size_t num_local_valid = 0;
  /// Samples of the order up to the end of this step, from the epoch's start.
  size_t end = 0;
};

/// Where a pass over the source begins, if not at the epoch's start.
struct ShardStart {
  size_t position = 0;
  /// The epoch's first batches, as many as a step takes: their samples fill up the end.
  std::vector<Indices> head = {};
};

/// A rank's pass over a source of global batches.
class BatchShard {
 public:
  /// The next global batch, nothing at the end (it is not called again after that).
  using Source = std::function<std::optional<Indices>()>;

  /// Throws: UsageError for a rank outside the world, or a batch size of 0; UsageError for
  /// split_batches with a batch size that is unset or no multiple of world_size.
  BatchShard(const BatchShardOptions& options, Source source, ShardStart start = {});

  /// Returns this rank's next batch, nothing at the end. Draws as many batches as a step of all ranks takes. It draws
  /// one more only to distinguish a short batch from the last one.
  /// Throws: UsageError if the source gives an empty batch, or a batch above batch_size
  /// that would have to be cut; the exceptions of the source.
  std::optional<ShardedBatch> next();

 private:
  std::optional<Indices> pull();
  std::optional<ShardedBatch> next_whole();
  std::optional<ShardedBatch> next_part();
  bool evens_out() const noexcept { return options_.even_batches && !options_.drop_last; }
  bool is_short(size_t size) const noexcept { return options_.batch_size && size < *options_.batch_size; }
  Indices padding(size_t begin, size_t count) const;

  BatchShardOptions options_;
  Source source_;
  std::optional<Indices> held_;
  bool ended_ = false;
  bool over_ = false;
  std::vector<Indices> head_;  // the first step's batches, given once more at the end
  size_t position_;
};

/// How many batches the rank gets from `num_batches` global ones, all full but the last of `last_size`
/// samples.
/// Throws: as BatchShard's constructor.
size_t shard_length(size_t num_batches, size_t last_size, const BatchShardOptions& options);

}  // namespace hasten::data
