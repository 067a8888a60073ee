// Memory of a device in a training step, by kind: the formulas of docs/plan.md.
//
// The device of the largest stage decides. Where ranks share a host's memory (the CPU), parameters and state lie there
// once, as shard_memory.h counts them.
#pragma once

#include "hasten/plan/cluster.h"
#include "hasten/plan/model_shape.h"
#include "hasten/plan/step_time.h"
#include "hasten/plan/strategy.h"

namespace hasten::plan {

/// Bytes of one device.
struct StepMemory {
  double weights = 0;  ///< in the dtype of computing; for split parameters, the part of this rank
  double gradients = 0;
  double optimizer = 0;  ///< its state, and float32 weights
  double units = 0;      ///< whole weights and gradients of the units at work, where state is split
  double activations = 0;
  double logits = 0;
  double reserve = 0;  ///< the allocator's loss and the runtime's own: 3 % and 1 GiB
  double total() const noexcept { return weights + gradients + optimizer + units + activations + logits + reserve; }
};

StepMemory step_memory(const ModelShape& model, const Cluster& cluster, const Strategy& strategy);

/// Returns the microbatches whose activations the busiest rank keeps, in stages of one rank: 1 without a pipeline.
double microbatches_in_flight(const Strategy& strategy);

}  // namespace hasten::plan
