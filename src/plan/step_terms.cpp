// See step_terms.h.
#include "hasten/plan/step_terms.h"

#include <algorithm>
#include <cmath>

namespace hasten::plan {

StepTerms step_terms(const ModelShape& model, const Cluster& cluster, const Strategy& strategy) {
  const Machine& machine = cluster.machine;
  const Constants& constants = cluster.constants;
  StepTerms terms;
  terms.tensor = strategy.sizes.tp;
  terms.microbatches = strategy.microbatches();
  terms.sequence = model.sequence;
  terms.hidden = model.hidden;
  terms.tokens = strategy.batch / (strategy.data_ranks() * terms.microbatches) * model.sequence / strategy.sizes.cp;
  terms.tokens_cut = terms.tokens / (strategy.sequence_parallel ? terms.tensor : 1);
  if (model.is_transformer()) {
    terms.qkv = model.qkv();
    terms.width = model.attention_width();
    terms.gate_columns = model.gates() * model.ffn;
    terms.ffn = model.ffn;
    terms.cut_columns = terms.gate_columns + terms.qkv;
    terms.score_heads = model.heads * model.attentions;
    terms.kv_columns = model.kv_heads * model.head_dim * model.attentions;
  } else {
    for (const WeightShape& weight : model.products) terms.cut_columns += weight.outputs / std::max(1.0, model.layers);
  }
  terms.stage_layers = std::ceil(model.layers / strategy.sizes.pp / strategy.chunks) * strategy.chunks;
  terms.parameters = model.stage_parameters(strategy.sizes.pp, strategy.sizes.tp);
  terms.element = strategy.element_bytes;
  const double float32 = machine.peak_flops_float32 > 0 ? machine.peak_flops_float32 : machine.peak_flops / 2;
  const double peak = strategy.element_bytes == 4 ? float32 : machine.peak_flops;
  terms.peak = peak * constants.product_share;
  terms.attention_peak = peak * constants.attention_share;
  terms.memory = machine.memory_bandwidth * constants.memory_share;
  terms.link = machine.link_bandwidth * constants.link_share;
  terms.network = machine.network_bandwidth * constants.network_share;
  return terms;
}

double product_seconds(const StepTerms& terms, const Constants& constants, double m, double k, double n) {
  return 2 * m * k * n / terms.peak * (1 + constants.small_size_cost * (1 / m + 1 / k + 1 / n));
}

}  // namespace hasten::plan
