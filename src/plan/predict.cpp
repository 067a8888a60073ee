// See predict.h.
#include "hasten/plan/predict.h"

#include <cmath>

#include "hasten/core/count_text.h"
#include "hasten/core/text.h"

namespace hasten::plan {

Prediction predict_checked(const ModelShape& model, const Cluster& cluster, const Strategy& strategy) {
  Prediction prediction;
  const StepTerms terms = step_terms(model, cluster, strategy);
  prediction.memory = step_memory(model, cluster, strategy);
  prediction.seconds = step_seconds(model, cluster, strategy);
  prediction.wires = step_wires(model, cluster, strategy, terms);
  prediction.microbatches = terms.microbatches;
  const double hops = prediction.wires[2].seconds(), busy = prediction.seconds.total() - prediction.seconds.pipeline;
  prediction.bubble = busy > 0 ? std::max(0.0, prediction.seconds.pipeline - hops) / busy : 0;
  const double devices = static_cast<double>(num_ranks(strategy.sizes)), seconds = prediction.seconds.total();
  const double tokens = strategy.batch * model.sequence;
  prediction.tokens_per_second = tokens / seconds / devices;
  const double float32 =
      cluster.machine.peak_flops_float32 > 0 ? cluster.machine.peak_flops_float32 : cluster.machine.peak_flops / 2;
  const double peak = strategy.element_bytes == 4 ? float32 : cluster.machine.peak_flops;
  prediction.mfu = model.step_flops(tokens) / seconds / devices / peak;
  return prediction;
}

Prediction predict(const ModelShape& model, const Cluster& cluster, const Strategy& strategy) {
  check_strategy(model, strategy);
  return predict_checked(model, cluster, strategy);
}

double usable_bytes(const Cluster& cluster, double share) {
  return share * cluster.machine.memory_gib * 1024 * 1024 * 1024;
}

std::string kind_of_numbers(const Cluster& cluster) {
  switch (cluster.origins) {
    case Origins::kMeasured:
      return "predicted from measured constants";
    case Origins::kPublishedFit:
      return "predicted";
    case Origins::kRated:
      return "predicted from rated figures";
  }
  return "predicted";
}

std::vector<std::string> caveats(const ModelShape& model, const Cluster& cluster, double devices) {
  std::vector<std::string> sentences;
  if (cluster.origins == Origins::kRated)
    sentences.push_back(text("The constants were fitted to A100 and H100, not to '", cluster.machine.device,
                             "'. Give its own in --cluster FILE."));
  for (const std::string& note : model.notes) sentences.push_back(note);
  const double host = cluster.machine.devices_per_host;
  if (devices > host && std::fmod(devices, host) != 0)
    sentences.push_back(
        text(count_text(devices, "device"), devices == 1 ? " is" : " are", " no multiple of the ", host,
             " of a host: one host is used in part."));
  return sentences;
}

}  // namespace hasten::plan
