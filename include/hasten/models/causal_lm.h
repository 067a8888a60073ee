// CausalLm: a language model from a folder of transformers, loaded by mapping its files.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "hasten/core/value.h"
#include "hasten/models/causal_lm_module.h"
#include "hasten/offload/load/dispatch.h"

namespace hasten::models {

using CausalLmPtr = std::shared_ptr<CausalLmModule>;

/// Returns the module that a config.json describes, constructed as usual. Use offload::empty_weights around it to save
/// the memory until weights are loaded. Throws: UsageError for a model_type that is not gpt2, gptj, llama, mistral or
/// qwen2, with the nearest one.
CausalLmPtr make_causal_lm(const core::Value& config);

/// Returns the names and forms of the module's contents in transformers' files.
offload::DispatchOptions causal_lm_load_options(const core::Value& config, const files::TensorSource& source,
                                                offload::DispatchOptions options);

/// A value handle; copies share the model.
class CausalLm {
 public:
  /// Loads a folder: config.json and model.safetensors, its index, or pytorch_model.bin. Weights are mapped where they
  /// lie, and streamed if options.max_memory["cpu"] is below the model. Blocks: on the headers. Throws:
  /// UsageError for another model type; DataError for weights that do not fit.
  static CausalLm from_folder(const std::string& folder,
                              const offload::DispatchOptions& options = {.device_map = "auto"});

  /// Returns logits; see CausalLmModule::forward.
  at::Tensor operator()(const at::Tensor& ids, const at::Tensor& attention_mask = {}, KvCache* cache = nullptr) const;
  CausalLmModule& module() const { return *dispatched_.operator->(); }
  offload::Dispatched<CausalLmPtr>& dispatched() { return dispatched_; }
  const core::Value& config() const { return config_; }

 private:
  CausalLm(core::Value config, offload::Dispatched<CausalLmPtr> dispatched)
      : config_(std::move(config)), dispatched_(std::move(dispatched)) {}
  core::Value config_;
  offload::Dispatched<CausalLmPtr> dispatched_;
};

}  // namespace hasten::models
