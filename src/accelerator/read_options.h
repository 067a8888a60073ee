// Options of an Accelerator together with the environment's values, and their forms for the rooms.
#pragma once

#include "hasten/accelerator/options.h"
#include "hasten/core/env.h"
#include "hasten/optim/prepared/prepared_scheduler.h"
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

training::AccumulationOptions accumulation_options(const AcceleratorOptions& options);
data::LoaderOptions loader_options(const AcceleratorOptions& options, bool put_on_device);
optim::PreparedSchedulerOptions scheduler_options(const AcceleratorOptions& options, int world_size);

}  // namespace hasten
