// See step_memory.h.
#include "hasten/plan/step_memory.h"

#include <algorithm>
#include <cmath>

#include "hasten/plan/shard_memory.h"

namespace hasten::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kRuntimeBytes = kGiB, kAllocatorLoss = 0.03;

// Bytes a parameter of what the optimizer keeps: its state, and float32 weights beside those of 16 bits.
double optimizer_bytes(const Strategy& strategy) {
  if (strategy.pure_low_precision) return strategy.optimizer_bytes / 2.0;
  return (strategy.element_bytes == 2 ? 4 : 0) + static_cast<double>(strategy.optimizer_bytes);
}

void add_state(const ModelShape& model, const Strategy& strategy, const StepTerms& terms, StepMemory& memory) {
  const double P = terms.parameters, n = strategy.shard_ranks(), low = strategy.element_bytes;
  const double layer = model.layer_parameters() / terms.tensor;
  const double table = model.is_transformer() ? model.vocabulary * model.hidden / terms.tensor : 0;
  UnitsUnderWay units{.unit = std::max(layer, table), .ranks = n, .compute_bytes = strategy.element_bytes};
  switch (strategy.data_parallel) {
    case DataParallel::kDdp:
      memory.weights = low * P;
      memory.gradients = low * P;
      memory.optimizer = optimizer_bytes(strategy) * P;
      break;
    case DataParallel::kZero1:
      memory.weights = low * P;
      memory.gradients = 4 * P;
      memory.optimizer = optimizer_bytes(strategy) * P / n;
      units.stage = 1;
      memory.units = bytes_under_way(units);
      break;
    case DataParallel::kZero2:
      memory.weights = low * P;
      memory.gradients = 4 * P / n;
      memory.optimizer = optimizer_bytes(strategy) * P / n;
      units.stage = 2;
      memory.units = bytes_under_way(units);
      break;
    case DataParallel::kZero3: {
      // Float32 weights are the optimizer's; those of 16 bits exist only in units.
      units.gradient_bytes = strategy.pure_low_precision ? 2 : 4;
      memory.weights = strategy.element_bytes == 4 ? 4 * P / n : strategy.pure_low_precision ? 2 * P / n : 0;
      memory.gradients = units.gradient_bytes * P / n;
      memory.optimizer = optimizer_bytes(strategy) * P / n;
      memory.units = bytes_under_way(units);
      break;
    }
  }
}

// Ranks of a host share parameters and state. Each of them also computes with a copy of what is in use.
void add_shared_state(const ModelShape& model, const Cluster& cluster, const Strategy& strategy, const StepTerms& terms,
                      StepMemory& memory) {
  const double ranks = strategy.shard_ranks(),
               a_host = std::min(ranks, std::max(1.0, std::floor(cluster.machine.devices_per_host / terms.tensor)));
  const double unit = std::max(1.0, model.layer_parameters() / terms.tensor);
  ShardMemoryInput input;
  input.parameters = static_cast<int64_t>(std::max(1.0, terms.parameters));
  input.largest_unit = static_cast<int64_t>(unit);
  input.ranks_per_host = static_cast<int>(a_host);
  input.hosts = static_cast<int>(std::ceil(ranks / a_host));
  input.compute_bytes = strategy.element_bytes;
  input.optimizer_bytes = strategy.optimizer_bytes;
  const ShardMemoryRow row = shard_memory(input)[static_cast<size_t>(strategy.data_parallel)];
  memory.weights = static_cast<double>(row.parameters) / a_host;
  memory.gradients = static_cast<double>(row.gradients) / a_host;
  memory.optimizer = static_cast<double>(row.optimizer) / a_host;
  memory.units = 2 * unit * strategy.element_bytes;
}

// Bytes of one layer's activations, all of them and those that recompute keeps.
struct LayerBytes {
  double all = 0, kept = 0;
};

LayerBytes layer_bytes(const ModelShape& model, const Strategy& strategy, const StepTerms& terms) {
  const double T = terms.tokens, t = terms.tensor, h = terms.hidden, e = terms.element;
  double cut = terms.cut_columns, scores = 0, whole = 4 * terms.tokens_cut * h;
  if (model.is_transformer()) {
    cut = terms.qkv + terms.width + (model.gates() + 1 + (model.gated ? 1 : 0)) * model.ffn;
    if (!model.flash) {
      scores = (1 + 2 * e) * T * terms.score_heads / t * terms.sequence;
      whole += terms.tokens_cut * h;
    }
  } else {
    whole = 0;
    for (const WeightShape& weight : model.products) cut += weight.inputs / std::max(1.0, model.layers);
  }
  LayerBytes layer;
  layer.all = e * (whole + T / t * cut) + scores;
  switch (strategy.recompute) {
    case Recompute::kNone:
      layer.kept = layer.all;
      break;
    case Recompute::kSelective:
      layer.kept = layer.all - scores;
      break;
    case Recompute::kFull:
      layer.kept = e * terms.tokens_cut * h;
      break;
    case Recompute::kEveryOtherProduct:
      layer.kept = 0.4 * layer.all;
      break;
  }
  return layer;
}

}  // namespace

double microbatches_in_flight(const Strategy& strategy) {
  const double p = strategy.sizes.pp, v = strategy.chunks, m = strategy.microbatches();
  if (p == 1) return 1;
  switch (strategy.order) {
    case OrderKind::kGPipe:
    case OrderKind::kLoopedBfs:
      return m;
    case OrderKind::kInterleavedZeroBubble:
    case OrderKind::kZbvZeroBubble:
      return std::min(m, p);
    default:
      return std::min(m * v, v > 1 ? (v - 1) * p + 2 * (p - 1) + 1 : p) / v;
  }
}

StepMemory step_memory(const ModelShape& model, const Cluster& cluster, const Strategy& strategy) {
  const StepTerms terms = step_terms(model, cluster, strategy);
  StepMemory memory;
  if (cluster.machine.shares_memory) {
    add_shared_state(model, cluster, strategy, terms, memory);
  } else {
    add_state(model, strategy, terms, memory);
  }
  const LayerBytes layer = layer_bytes(model, strategy, terms);
  memory.activations = layer.kept * model.layers / strategy.sizes.pp * microbatches_in_flight(strategy) +
                       (strategy.recompute == Recompute::kNone ? 0 : layer.all);
  if (model.is_transformer())
    memory.logits = terms.tokens * model.vocabulary / terms.tensor * (strategy.pure_low_precision ? 6 : 8);
  // A CPU's allocator loses little, and libtorch's own memory is there once.
  const double runtime = cluster.machine.shares_memory ? 0.2 * kGiB : kRuntimeBytes;
  memory.reserve = kAllocatorLoss * memory.total() + runtime;
  return memory;
}

}  // namespace hasten::plan
