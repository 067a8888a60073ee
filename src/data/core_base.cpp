// What a loader refuses; see loader_core.h.
#include "hasten/data/loader_core.h"

namespace hasten::data::detail {

void check_loader_options(const torch::data::FullDataLoaderOptions& options) {
  if (options.batch_size == 0) throw UsageError(Origin{"data"}, "batch_size = 0, expected at least 1.");
  if (options.workers > 0 && options.max_jobs == 0) {
    throw UsageError(
        Origin{"data"}, "max_jobs = 0 with workers = ", options.workers,
        ": the workers would get nothing to do. Leave max_jobs unset (2 * workers) or give at least 1.");
  }
}

void check_prepare(const state::Process& process, const LoaderOptions& own, const LoaderFacts& facts) {
  const Origin origin{"data", process.rank(), process.world_size()};
  if (own.put_on_device && !process.device().is_cpu() && !facts.can_be_placed) {
    throw UsageError(origin, "put_on_device = true with device ", process.device().str(),
                     ", but the tensors in the ",
                     "batches of this dataset are not known. Name them in your struct: friend auto ",
                     "hasten_fields(Batch& b) { return std::tie(b.x, b.y); }, or use put_on_device = false.");
  }
  if (process.world_size() == 1) return;
  if (facts.sampler_spreads_itself) {
    throw UsageError(origin,
                     "torch's distributed samplers already give each rank its part, and the loader would ",
                     "divide that part once more. Use RandomSampler or SequentialSampler.");
  }
  // The checks of a shard, now rather than in the first epoch.
  BatchShard({.rank = process.rank(),
              .world_size = process.world_size(),
              .batch_size = facts.batch_size,
              .split_batches = own.split_batches},
             nullptr);
}

void throw_prepared_twice(const Origin& origin) {
  throw UsageError(origin, "this loader was prepared by another Accelerator; a loader belongs to one. ",
                   "Make a second data::loader of the same dataset.");
}

void throw_unknown_size(const Origin& origin) {
  throw UsageError(origin,
                   "neither the sampler nor the dataset of this loader knows its size, so the number of ",
                   "batches is not known. Give the sampler a size() of its own, or count the batches.");
}

}  // namespace hasten::data::detail
