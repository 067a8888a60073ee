// Wires: bytes that one device sends in a step, over which connection, and how fast that one is.
//
// Ranks of one host that are in one group share a ring, so that all network cards of the host work for the group.
#pragma once

#include <array>

#include "hasten/plan/cluster.h"
#include "hasten/plan/model_shape.h"
#include "hasten/plan/step_terms.h"
#include "hasten/plan/strategy.h"

namespace hasten::plan {

struct Wire {
  const char* kind = "";  ///< "tensor", "context", "pipeline", "data", "replicas"
  double bytes = 0;       ///< a step, of one device
  double bandwidth = 0;   ///< bytes a second that the exchange gets
  bool within_host = false;
  double seconds() const noexcept { return bandwidth > 0 ? bytes / bandwidth : 0; }
};

using Wires = std::array<Wire, 5>;

/// Returns what passes over each wire, in the order of the kinds above.
Wires step_wires(const ModelShape& model, const Cluster& cluster, const Strategy& strategy, const StepTerms& terms);

/// Returns the bandwidth for a group of `ranks` whose neighbours are `stride` ranks apart.
double group_bandwidth(const Cluster& cluster, const StepTerms& terms, double ranks, double stride, double tensor);

}  // namespace hasten::plan
