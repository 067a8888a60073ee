// See wires.h.
#include "hasten/plan/wires.h"

#include <algorithm>
#include <cmath>

namespace hasten::plan {
namespace {

bool within_host(const Cluster& cluster, double ranks, double stride) {
  return ranks * stride <= cluster.machine.devices_per_host;
}

// Bytes that the exchange of gradients and weights moves among the ranks that split or repeat state.
double data_bytes(const Strategy& strategy, const StepTerms& terms, double ranks) {
  if (ranks <= 1) return 0;
  const double share = terms.parameters * (ranks - 1) / ranks;
  const double gradient = strategy.gradient_bytes, weight = strategy.weight_bytes;
  switch (strategy.data_parallel) {
    case DataParallel::kDdp:
      return 2 * gradient * share;
    case DataParallel::kZero1:
      return (4 + weight) * share;
    // A pipeline exchanges gradients once, at the end of the step.
    case DataParallel::kZero2:
      return (gradient + weight) * share * (strategy.sizes.pp > 1 ? 1 : terms.microbatches);
    case DataParallel::kZero3:
      return (2 * weight + gradient) * share * terms.microbatches;
  }
  return 0;
}

}  // namespace

double group_bandwidth(const Cluster& cluster, const StepTerms& terms, double ranks, double stride, double tensor) {
  if (within_host(cluster, ranks, stride)) return terms.link;
  const double on_one_host = std::max(1.0, std::floor(cluster.machine.devices_per_host / tensor));
  return std::min(terms.link, terms.network * on_one_host);
}

Wires step_wires(const ModelShape& model, const Cluster& cluster, const Strategy& strategy, const StepTerms& terms) {
  const LayoutSizes& sizes = strategy.sizes;
  const double t = sizes.tp, c = sizes.cp, p = sizes.pp, passes = terms.microbatches * terms.stage_layers;
  const bool one_host = within_host(cluster, static_cast<double>(num_ranks(sizes)), 1);
  Wires wires;
  // Four all-reduces a layer: two in forward, two in backward; the recomputed forward repeats its two.
  const double times = strategy.recompute == Recompute::kFull ? 6 : 4;
  const bool tensor_inside = within_host(cluster, t, 1);
  wires[0] = {"tensor", times * passes * 2 * terms.element * terms.tokens * terms.hidden * (t - 1) / t,
              tensor_inside ? terms.link : std::min(terms.link, terms.network * cluster.machine.devices_per_host),
              tensor_inside};
  const double context_times = strategy.recompute == Recompute::kFull ? 4 : 3;
  const bool context_inside = within_host(cluster, c, t);
  wires[1] = {"context", context_times * passes * 2 * terms.element * terms.tokens * terms.kv_columns / t * (c - 1),
              context_inside ? terms.link : terms.network, context_inside};
  const double hops = p > 1 ? 2 * (p - 1) + 2 * terms.microbatches * strategy.chunks : 0;
  wires[2] = {"pipeline", hops * terms.element * terms.tokens * terms.hidden / t, one_host ? terms.link : terms.network,
              one_host};
  // Plain data parallelism has one all-reduce over all ranks of a stage. Split state has a group of its own, and a
  // second one over the groups that repeat it.
  const bool split = strategy.data_parallel != DataParallel::kDdp;
  const double ranks = split ? strategy.shard_ranks() : strategy.data_ranks() * c;
  wires[3] = {"data", data_bytes(strategy, terms, ranks), group_bandwidth(cluster, terms, ranks, t, t),
              within_host(cluster, ranks, t)};
  const double replicas = split ? sizes.dp_replicate : 1;
  const double stride = t * strategy.shard_ranks();
  const double repeated = 2 * strategy.gradient_bytes * terms.parameters / std::max(1, strategy.shard_ranks());
  wires[4] = {"replicas", repeated * (replicas - 1) / replicas,
              group_bandwidth(cluster, terms, replicas, stride, stride), within_host(cluster, replicas, stride)};
  (void)model;
  return wires;
}

}  // namespace hasten::plan
