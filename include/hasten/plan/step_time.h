// Seconds of a training step, by kind: the formulas of docs/plan.md, one function each.
//
// The slowest stage of the pipeline decides. All times are of one device; a device of the last stage also computes the
// head.
#pragma once

#include "hasten/plan/cluster.h"
#include "hasten/plan/model_shape.h"
#include "hasten/plan/step_terms.h"
#include "hasten/plan/strategy.h"

namespace hasten::plan {

/// Seconds of one layer over one microbatch.
struct LayerSeconds {
  double products = 0, attention = 0, scores = 0, passes = 0, tensor = 0, context = 0;
  double total() const noexcept { return products + attention + scores + passes + tensor + context; }
};

LayerSeconds layer_forward(const ModelShape& model, const Cluster& cluster, const Strategy& strategy,
                           const StepTerms& terms);
/// Returns the backward of a layer with this forward, and what recompute adds.
LayerSeconds layer_backward(const ModelShape& model, const Strategy& strategy, const LayerSeconds& forward);

/// Seconds of a step, by kind. They do not overlap, so that they add up to the step.
struct StepSeconds {
  double products = 0;   ///< matrix products, the head's too
  double attention = 0;  ///< fused, or its products
  double passes = 0;     ///< all that reads and writes memory: norms, activations, scores, logits
  double tensor = 0;     ///< exchange of tensor parallelism that nothing hides
  double context = 0;    ///< exchange of keys and values
  double pipeline = 0;   ///< bubble, and values sent between stages
  double data = 0;       ///< exchange of gradients and weights that nothing hides
  double update = 0;     ///< the optimizer, and the host's own work
  double total() const noexcept { return products + attention + passes + tensor + context + pipeline + data + update; }
};

StepSeconds step_seconds(const ModelShape& model, const Cluster& cluster, const Strategy& strategy);

}  // namespace hasten::plan
