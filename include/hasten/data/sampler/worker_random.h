// Random numbers for what a dataset does to its samples (augmentation), drawn on whatever thread fetches
// them.
//
// libtorch's worker threads share the process's default generator, so their draws depend on their order. Here each
// batch has a stream of its own, keyed by the loader's seed, the epoch and the batch's indices. It is the same with any
// number of workers, and on any rank that fetches the batch.
#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>

#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data {

/// Returns the stream of the batch that this thread is fetching, at its start at the first call. Outside a loader's
/// fetch, the default CPU generator.
at::Generator worker_generator();

namespace detail {

/// While it exists, worker_generator() on this thread is the stream of this batch.
class WorkerScope {
 public:
  WorkerScope(uint64_t seed, uint64_t epoch, const Indices& indices);
  ~WorkerScope();
  WorkerScope(const WorkerScope&) = delete;
  WorkerScope& operator=(const WorkerScope&) = delete;
};

}  // namespace detail

}  // namespace hasten::data
