// See step_time.h.
#include "hasten/plan/step_time.h"

#include <algorithm>
#include <cmath>

#include "hasten/plan/simulate.h"
#include "hasten/plan/wires.h"

namespace hasten::plan {
namespace {

double hidden_share(TensorOverlap overlap) {
  switch (overlap) {
    case TensorOverlap::kNone:
      return 0;
    case TensorOverlap::kAsync:
      return 0.5;
    case TensorOverlap::kMegatron:
      return 0.9;
  }
  return 0;
}

// Seconds of the head over a microbatch, forward and backward; other models count it among their products.
struct HeadSeconds {
  double products = 0, passes = 0;
  double total() const noexcept { return products + passes; }
};

HeadSeconds head_seconds(const ModelShape& model, const Cluster& cluster, const StepTerms& terms) {
  if (!model.is_transformer()) return {};
  const double columns = model.vocabulary / terms.tensor;
  return {3 * product_seconds(terms, cluster.constants, terms.tokens, terms.hidden, columns),
          3 * cluster.constants.logit_passes * 4 * terms.tokens * columns / terms.memory};
}

// The time in which the first and the last ranks of the pipeline stand idle.
double bubble_seconds(const Strategy& strategy, const StepTerms& terms, const LayerSeconds& forward,
                      const LayerSeconds& backward) {
  const double p = strategy.sizes.pp, v = strategy.chunks;
  const double stage = terms.stage_layers * (forward.total() + backward.total());
  const bool halved =
      strategy.order == OrderKind::kInterleavedZeroBubble || strategy.order == OrderKind::kZbvZeroBubble;
  if (!halved || p == 1) return (p - 1) / v * stage;
  // Products of the weights alone can wait; all else of a backward is in the half of the inputs.
  const double layers = terms.stage_layers / v, weights = layers * forward.products;
  const StageCost cost{layers * forward.total(), layers * backward.total() - weights, weights, 0, 0};
  const OrderSizes sizes{strategy.sizes.pp, strategy.chunks, static_cast<int>(terms.microbatches)};
  return std::max(0.0, simulate(make_order(strategy.order, sizes), {cost}).seconds - terms.microbatches * stage);
}

// The part of the data exchange that no computing hides.
double exposed_seconds(const Cluster& cluster, const Strategy& strategy, const StepTerms& terms, const Wires& wires,
                       const LayerSeconds& forward, const LayerSeconds& backward, double head) {
  const double seconds = wires[3].seconds() + wires[4].seconds();
  const double stage = terms.stage_layers * (forward.total() + backward.total());
  double window = terms.stage_layers * backward.total(), hidden = cluster.constants.data_overlap;
  switch (strategy.data_parallel) {
    case DataParallel::kDdp:
      hidden = strategy.overlap_gradients ? hidden : 0;
      break;
    case DataParallel::kZero1:
      window = stage;
      break;
    case DataParallel::kZero2:
    case DataParallel::kZero3:
      window = terms.microbatches * (stage + head);
      break;
  }
  const double latency = seconds > 0 ? cluster.constants.link_latency_s * terms.stage_layers : 0;
  return std::max(seconds - hidden * window, cluster.constants.exposed_data * seconds) + latency;
}

}  // namespace

LayerSeconds layer_forward(const ModelShape& model, const Cluster& cluster, const Strategy& strategy,
                           const StepTerms& terms) {
  const Constants& constants = cluster.constants;
  const double T = terms.tokens, h = terms.hidden, t = terms.tensor;
  const auto product = [&](double m, double k, double n) { return product_seconds(terms, constants, m, k, n); };
  LayerSeconds layer;
  double wide = 0;
  if (model.is_transformer()) {
    layer.products = product(T, h, terms.qkv / t) + product(T, terms.width / t, h) +
                     product(T, h, terms.gate_columns / t) + product(T, terms.ffn / t, h);
    layer.attention =
        4 * T * terms.width / t * terms.sequence * (model.flash && model.causal ? 0.5 : 1) / terms.attention_peak;
    if (!model.flash)
      layer.scores = constants.score_passes * terms.element * T * terms.score_heads / t * terms.sequence / terms.memory;
    wide = (model.flash ? constants.wide_passes_flash : constants.wide_passes_unfused) * terms.element *
           terms.tokens_cut * h;
  } else {
    for (const WeightShape& weight : model.products) layer.products += product(T, weight.inputs, weight.outputs / t);
    layer.products /= std::max(1.0, model.layers);
  }
  layer.passes = (wide + constants.cut_passes * terms.element * T * terms.cut_columns / 4 / t) / terms.memory;
  const LayoutSizes& sizes = strategy.sizes;
  if (sizes.tp > 1) {
    const bool inside = sizes.tp <= cluster.machine.devices_per_host;
    const double link = inside ? terms.link : std::min(terms.link, terms.network * cluster.machine.devices_per_host);
    const double one = 2 * terms.element * T * h * (t - 1) / t / link + constants.link_latency_s;
    layer.tensor = 2 * one * (1 - hidden_share(strategy.overlap_tensor));
  }
  if (sizes.cp > 1) {
    const bool inside = static_cast<double>(sizes.cp) * t <= cluster.machine.devices_per_host;
    layer.context =
        2 * terms.element * T * terms.kv_columns / t * (sizes.cp - 1) / (inside ? terms.link : terms.network);
  }
  return layer;
}

LayerSeconds layer_backward(const ModelShape& model, const Strategy& strategy, const LayerSeconds& forward) {
  LayerSeconds backward;
  backward.products = 2 * forward.products;
  backward.attention = (model.flash ? 2.5 : 2) * forward.attention;
  backward.scores = 2 * forward.scores;
  backward.passes = 2 * forward.passes;
  backward.tensor = forward.tensor;
  backward.context = 2 * forward.context;
  switch (strategy.recompute) {
    case Recompute::kNone:
      break;
    case Recompute::kSelective:
      backward.attention += forward.attention;
      backward.scores += forward.scores;
      break;
    case Recompute::kFull:
      backward.products += forward.products;
      backward.attention += forward.attention;
      backward.scores += forward.scores;
      backward.passes += forward.passes;
      backward.tensor += forward.tensor;
      backward.context += forward.context;
      break;
    case Recompute::kEveryOtherProduct:
      backward.products += forward.products / 2;
      backward.passes += forward.passes;
      break;
  }
  return backward;
}

StepSeconds step_seconds(const ModelShape& model, const Cluster& cluster, const Strategy& strategy) {
  const StepTerms terms = step_terms(model, cluster, strategy);
  const Wires wires = step_wires(model, cluster, strategy, terms);
  const LayerSeconds forward = layer_forward(model, cluster, strategy, terms);
  const LayerSeconds backward = layer_backward(model, strategy, forward);
  const HeadSeconds head = head_seconds(model, cluster, terms);
  const double m = terms.microbatches, times = m * terms.stage_layers;
  StepSeconds step;
  step.products = times * (forward.products + backward.products) + m * head.products;
  step.attention = times * (forward.attention + backward.attention);
  step.passes = times * (forward.scores + backward.scores + forward.passes + backward.passes) + m * head.passes;
  step.tensor = times * (forward.tensor + backward.tensor);
  step.context = times * (forward.context + backward.context);
  const double messages = strategy.sizes.pp > 1 ? 2 * (strategy.sizes.pp - 1) + 2 * m * strategy.chunks : 0;
  step.pipeline = bubble_seconds(strategy, terms, forward, backward) + wires[2].seconds() +
                  messages * cluster.constants.network_latency_s;
  step.data = exposed_seconds(cluster, strategy, terms, wires, forward, backward, head.total());
  const double owners = strategy.data_parallel == DataParallel::kDdp ? 1 : strategy.shard_ranks();
  step.update = (14.0 + strategy.optimizer_bytes) * terms.parameters / owners / terms.memory +
                cluster.constants.seconds_a_layer * model.layers * m + cluster.constants.seconds_a_step;
  return step;
}

}  // namespace hasten::plan
