// See inference.h.
#include "hasten/parallel/shard/inference.h"

#include <algorithm>
#include <limits>

#include "hasten/core/error.h"

namespace hasten::parallel {

InferenceSettings inference_settings(const plan::DeepSpeedConfig& config) {
  const Origin origin{"deepspeed"};
  const auto resolved = plan::resolve_deepspeed(config, 1, false);
  plan::require_supported(resolved, config);
  if (resolved.stage != 3) {
    throw UsageError(origin, config.source(), ": zero_optimization.stage is ", resolved.stage,
                     "; ZeRO-Inference is of stage 3.");
  }
  for (const char* section : {"optimizer", "scheduler"}) {
    if (config.find(section) == nullptr) continue;
    throw UsageError(origin, config.source(), " has a section ", section,
                     ", and a model for inference has none. Leave it out, or prepare the "
                     "model with an Accelerator.");
  }
  InferenceSettings settings;
  if (resolved.text("zero_optimization.offload_param.device") != "nvme") return settings;
  settings.folder = resolved.text("zero_optimization.offload_param.nvme_path");
  if (!resolved.is_given("zero_optimization.stage3_max_live_parameters")) return settings;
  const int64_t numel = resolved.count("zero_optimization.stage3_max_live_parameters");
  settings.max_live_bytes = std::min(numel, std::numeric_limits<int64_t>::max() / 4) * 4;
  return settings;
}

}  // namespace hasten::parallel
