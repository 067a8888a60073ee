// zero_inference: a model that only computes, under a DeepSpeed configuration of stage 3 (ZeRO-Inference).
//
// DeepSpeed runs such a model through its training engine without an optimizer. Here offload/load/dispatch.h carries it
// out. With offload_param "nvme" weights lie in files of nvme_path and are streamed through at most
// stage3_max_live_parameters. Otherwise they stay in memory. Every process has a model of its own. Processes of a host
// share the files' pages.
#pragma once

#include <string>
#include <utility>

#include "hasten/offload/load/dispatch.h"
#include "hasten/settings/deepspeed_config.h"

namespace hasten::parallel {

struct InferenceSettings {
  /// Empty: weights stay in memory.
  std::string folder = {};
  /// Bytes of weights in memory at a time; 0: as many as fit.
  int64_t max_live_bytes = 0;
};

/// Throws: UsageError for a stage other than 3, an optimizer or a scheduler section, "nvme"
/// without a path, or what resolve_deepspeed refuses.
InferenceSettings inference_settings(const plan::DeepSpeedConfig& config);

/// Blocks: on the disk. Throws: as inference_settings and offload::disk_offload.
template <class M>
offload::Dispatched<M> zero_inference(M model, const plan::DeepSpeedConfig& config) {
  const auto settings = inference_settings(config);
  offload::DispatchOptions options;
  if (settings.max_live_bytes > 0)
    options.max_memory = {{offload::Device("cpu"), offload::Bytes(settings.max_live_bytes)}};
  return settings.folder.empty() ? offload::cpu_offload(std::move(model))
                                 : offload::disk_offload(std::move(model), settings.folder, options);
}

}  // namespace hasten::parallel
