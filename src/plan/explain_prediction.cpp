// The derivation of a prediction, line by line; see predict.h. The letters are those of docs/plan.md.
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "hasten/plan/predict.h"

namespace hasten::plan {
namespace {

// Four significant digits; large and small numbers in powers of ten.
std::string four_digits(double value) {
  return core::general_text(value, 4);
}

std::string gib_of(double bytes) {
  return four_digits(bytes / (1024.0 * 1024 * 1024)) + " GiB";
}

class Explanation {
 public:
  Explanation(const ModelShape& model, const Cluster& cluster, const Strategy& strategy)
      : model_(model),
        cluster_(cluster),
        strategy_(strategy),
        terms_(step_terms(model, cluster, strategy)),
        prediction_(predict(model, cluster, strategy)),
        forward_(layer_forward(model, cluster, strategy, terms_)),
        backward_(layer_backward(model, strategy, forward_)) {}

  std::vector<std::string> lines() {
    sizes();
    layer();
    step();
    wires();
    memory();
    return std::move(lines_);
  }

 private:
  template <class... Parts>
  void add(const Parts&... parts) {
    lines_.push_back(text(parts...));
  }

  void sizes() {
    const double data = strategy_.data_ranks();
    add("sizes");
    add("  m = batch / (d b) = ", four_digits(strategy_.batch), " / (", data, " x ", four_digits(strategy_.micro_batch),
        ") = ", four_digits(terms_.microbatches), " microbatches");
    add("  T = batch / (d m) s / c = ", four_digits(strategy_.batch), " / (", data, " x ",
        four_digits(terms_.microbatches), ") x ", four_digits(model_.sequence), " / ", strategy_.sizes.cp, " = ",
        four_digits(terms_.tokens), " tokens");
    add("  P = (l / p) layer / t + tables / t = ", four_digits(model_.layers), " / ", strategy_.sizes.pp, " x ",
        four_digits(model_.layer_parameters()), " / ", strategy_.sizes.tp,
        " + tables = ", four_digits(terms_.parameters), " parameters of the largest stage");
    add("  layers of the slowest stage = ceil(l / (p v)) v = ", four_digits(terms_.stage_layers));
    add("  products reach ", four_digits(terms_.peak), " FLOP/s (share ", four_digits(cluster_.constants.product_share),
        "), attention ", four_digits(terms_.attention_peak), ", memory ", four_digits(terms_.memory), " B/s, link ",
        four_digits(terms_.link), " B/s, network ", four_digits(terms_.network), " B/s");
  }

  void layer() {
    const double T = terms_.tokens, h = terms_.hidden, t = terms_.tensor;
    add("a layer, forward");
    if (model_.is_transformer()) {
      const auto product = [&](const char* name, double m, double k, double n) {
        add("  ", name, " = 2 m k n / peak (1 + ", four_digits(cluster_.constants.small_size_cost),
            " (1/m + 1/k + 1/n)), m ", four_digits(m), ", k ", four_digits(k), ", n ", four_digits(n), " = ",
            four_digits(product_seconds(terms_, cluster_.constants, m, k, n)), " s");
      };
      product("q, k, v", T, h, terms_.qkv / t);
      product("attention's output", T, terms_.width / t, h);
      product("into the feed-forward part", T, h, terms_.gate_columns / t);
      product("out of it", T, terms_.ffn / t, h);
      add("  attention = 4 T (a hd / t) s / peak", model_.flash && model_.causal ? " / 2" : "", " = ",
          four_digits(forward_.attention), " s");
    } else {
      add("  products = those of ", model_.products.size(), " weights / layers = ", four_digits(forward_.products),
          " s");
    }
    add("  passes = reads and writes / memory = ", four_digits(forward_.passes + forward_.scores), " s");
    if (t > 1) add("  tensor = 2 x 2 e T h (t - 1) / t / link = ", four_digits(forward_.tensor), " s");
    if (forward_.context > 0) add("  context = 2 e T kv hd / t (c - 1) / wire = ", four_digits(forward_.context), " s");
    add("  forward = ", four_digits(forward_.total()), " s, backward with recompute ",
        recompute_name(strategy_.recompute), " = ", four_digits(backward_.total()), " s");
  }

  void step() {
    const StepSeconds& s = prediction_.seconds;
    add("a step");
    add("  products = m layers (forward + backward) + head = ", four_digits(s.products), " s");
    add("  attention = ", four_digits(s.attention), " s, passes = ", four_digits(s.passes),
        " s, tensor = ", four_digits(s.tensor), " s, context = ", four_digits(s.context), " s");
    const double p = strategy_.sizes.pp, v = strategy_.chunks;
    add("  pipeline = (p - 1) / v stage + hops = ", four_digits(p - 1), " / ", four_digits(v), " x ",
        four_digits(terms_.stage_layers * (forward_.total() + backward_.total())), " + ",
        four_digits(prediction_.wires[2].seconds()), " = ", four_digits(s.pipeline), " s");
    add("  data = what computing does not hide of ",
        four_digits(prediction_.wires[3].seconds() + prediction_.wires[4].seconds()), " s = ", four_digits(s.data),
        " s");
    add("  update = ", 14 + strategy_.optimizer_bytes, " P / (memory n) + the host's work = ", four_digits(s.update),
        " s");
    add("  step = ", four_digits(s.total()), " s");
  }

  void wires() {
    add("wires, a device");
    for (const Wire& wire : prediction_.wires) {
      if (wire.bytes > 0)
        add("  ", wire.kind, " = ", gib_of(wire.bytes), " at ", four_digits(wire.bandwidth), " B/s ",
            wire.within_host ? "within the host" : "between hosts", " = ", four_digits(wire.seconds()), " s");
    }
  }

  void memory() {
    const StepMemory& m = prediction_.memory;
    const double n = strategy_.shard_ranks();
    add("memory of a device, ", data_parallel_name(strategy_.data_parallel), " over n = ", n);
    add("  weights = ", gib_of(m.weights), ", gradients = ", gib_of(m.gradients), ", optimizer = ", gib_of(m.optimizer),
        ", units at work = ", gib_of(m.units));
    add("  activations = kept of a layer x ", four_digits(model_.layers / strategy_.sizes.pp), " layers x ",
        four_digits(microbatches_in_flight(strategy_)), " in flight = ", gib_of(m.activations));
    add("  logits = ", gib_of(m.logits), ", reserve = ", gib_of(m.reserve));
    add("  total = ", gib_of(m.total()), " of ", four_digits(cluster_.machine.memory_gib), " GiB");
  }

  const ModelShape& model_;
  const Cluster& cluster_;
  const Strategy& strategy_;
  StepTerms terms_;
  Prediction prediction_;
  LayerSeconds forward_, backward_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> explain_prediction(const ModelShape& model, const Cluster& cluster, const Strategy& strategy) {
  return Explanation(model, cluster, strategy).lines();
}

}  // namespace hasten::plan
