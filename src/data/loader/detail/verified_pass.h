// A pass that hasten verify records, and the shares of all ranks one after the other (training/verify_recorder.h).
//
// Batches are read where they are planned, on the loop's thread. So what is recorded of a batch stays beside it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/loader/detail/epoch_pipeline.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/training/verify_recorder.h"

namespace hasten::data::detail {

/// The batches of the ranks of a world, step by step, from one pass over the source.
class SharePlan {
 public:
  struct Share {
    int rank;
    ShardedBatch batch;
  };

  /// The ranks are options.rank and, with `all`, all others. Throws: as BatchShard's constructor.
  SharePlan(const BatchShardOptions& options, bool all, BatchShard::Source source, const ShardStart& start);

  /// Returns a step's batches, of those ranks that have one; empty at the end. Throws: as BatchShard::next.
  std::vector<Share> next();
  /// Returns true if next() has nothing more. Throws: as BatchShard::next.
  bool at_end();

 private:
  struct Feed;
  std::vector<Share> draw();
  std::shared_ptr<Feed> feed_;
  std::vector<std::pair<int, BatchShard>> shards_;
  std::optional<std::vector<Share>> ahead_;
};

class VerifiedPass : public std::enable_shared_from_this<VerifiedPass> {
 public:
  using Read = std::function<AnyBatch(const Indices& places)>;

  VerifiedPass(training::VerifyRecorder& recorder, const BatchOperations& operations, bool is_prepared, int rank);

  /// Returns true if a loop over a prepared loader gets the batches of all ranks.
  bool takes_all() const noexcept { return is_prepared_ && recorder_.num_shares() > 1; }
  /// Replaces planning and fetching of `stages`. `skip` steps are left out. `read` reads samples, `forget` is called
  /// with the end of each step whose samples were read.
  void plan(PipelineStages& stages, SharePlan shares, size_t skip, Read read, std::function<void(size_t end)> forget);
  /// Records batches that `stages` plans itself.
  void observe(PipelineStages& stages);

 private:
  void report(PipelineStages& stages);
  void plan_step(SharePlan& shares, const Read& read);
  uint64_t hash_of(const AnyBatch& batch) const;
  void put_together();

  struct Given {
    PlannedBatch planned;
    training::VerifyBatch note;
  };
  training::VerifyRecorder& recorder_;
  const BatchOperations operations_;
  const bool is_prepared_;
  const int rank_;
  std::deque<Given> ready_;
  /// Notes on batches that were planned and not handed out yet; several where a batch was put together.
  std::deque<std::vector<training::VerifyBatch>> notes_;
};

}  // namespace hasten::data::detail
