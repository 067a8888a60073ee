// Random numbers for what a dataset does to its samples (augmentation), drawn on whatever thread fetches
// them.
//
// libtorch's worker threads share the process's default generator, so what they draw depends on which was
// first. Here each batch has a stream of its own, keyed by the loader's seed, the epoch and the batch's
// indices: the same with any number of workers, and on whichever rank the batch is fetched.
#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>

#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data {

/// The stream of the batch that this thread is fetching, at its start the first time it is asked for. Outside
/// a loader's fetch, the default CPU generator. Collective: no. Blocks: no. Throws: nothing.
at::Generator worker_generator();

namespace detail {

/// While it lives, worker_generator() on this thread is the stream of this batch.
class WorkerScope {
 public:
  WorkerScope(uint64_t seed, uint64_t epoch, const Indices& indices);
  ~WorkerScope();
  WorkerScope(const WorkerScope&) = delete;
  WorkerScope& operator=(const WorkerScope&) = delete;
};

}  // namespace detail

}  // namespace hasten::data
