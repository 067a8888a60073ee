// Options of an Accelerator together with the environment's values, and their forms for the rooms.
#pragma once

#include "hasten/accelerator/options.h"
#include "hasten/core/env.h"
#include "hasten/optim/prepared/prepared_scheduler.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/training/accumulation.h"

namespace hasten {

struct ReadOptions {
  /// The environment's values fill all open options.
  AcceleratorOptions options;
  Environment environment;
};

/// Throws: UsageError for what this version cannot do, naming the options, or the variables and the
/// launcher's flags that set them.
ReadOptions read_options(AcceleratorOptions options, Environment environment);

/// Returns what is split over data parallel ranks: options.shard. If dp_shard is above 1 and `shard` is kNone, all is.
/// Throws: UsageError for a mesh of `shard` beside dp_replicate and dp_shard.
parallel::ShardOptions shard_options(const AcceleratorOptions& options, const parallel::Layout& layout);

training::AccumulationOptions accumulation_options(const AcceleratorOptions& options);
data::LoaderOptions loader_options(const AcceleratorOptions& options, bool put_on_device);
optim::PreparedSchedulerOptions scheduler_options(const AcceleratorOptions& options, int world_size);

}  // namespace hasten
