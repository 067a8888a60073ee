// Padding and stride; see distributed_sampler.h.
#include "hasten/data/sampler/distributed_sampler.h"

#include "hasten/core/error.h"

namespace hasten::data {

namespace {

size_t part_of(size_t num_indices, const DistributedSamplerOptions& options) {
  if (!options.num_replicas || !options.rank) {
    throw UsageError(Origin{"data"}, "DistributedSampler without ", options.num_replicas ? "rank" : "num_replicas",
                     "; expected both, since every rank would get all samples. Make it with a Process or a Group: "
                     "DistributedSampler(size, process).");
  }
  if (*options.num_replicas < 1 || *options.rank < 0 || *options.rank >= *options.num_replicas) {
    throw UsageError(Origin{"data"}, "rank ", *options.rank, " of num_replicas = ", *options.num_replicas,
                     ": ranks go from 0 to num_replicas - 1.");
  }
  const size_t replicas = static_cast<size_t>(*options.num_replicas);
  return num_indices / replicas + (!options.drop_last && num_indices % replicas > 0 ? 1 : 0);
}

DistributedSamplerOptions with_ranks(DistributedSamplerOptions options, int num_replicas, int rank) {
  if (!options.num_replicas) options.num_replicas = num_replicas;
  if (!options.rank) options.rank = rank;
  return options;
}

}  // namespace

DistributedSampler::DistributedSampler(size_t num_indices, const process::Process& process,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(num_indices, with_ranks(options, process.world_size(), process.rank())) {}

DistributedSampler::DistributedSampler(size_t num_indices, const comm::Group& group,
                                       const DistributedSamplerOptions& options)
    : DistributedSampler(num_indices, with_ranks(options, group.world_size(), group.rank())) {}

DistributedSampler::DistributedSampler(size_t num_indices, const DistributedSamplerOptions& options)
    : SeedableSampler(options.seed),
      num_indices_(num_indices),
      options_(options),
      num_samples_(part_of(num_indices, options)),
      order_(num_indices, {.seed = options.seed, .order = options.order}) {}

void DistributedSampler::begin_epoch(uint64_t epoch) {
  if (!options_.shuffle) return;
  order_.set_epoch(epoch);
  order_.reset();
}

size_t DistributedSampler::at(size_t position) const {
  const size_t place = static_cast<size_t>(*options_.rank) + position * static_cast<size_t>(*options_.num_replicas);
  return options_.shuffle ? order_.index_at(place % num_indices_) : place % num_indices_;
}

}  // namespace hasten::data
