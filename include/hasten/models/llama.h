// Llama, and its kin Mistral and Qwen2, with transformers' names: model.{embed_tokens, layers.N.{input_layernorm,
// self_attn.{q,k,v,o}_proj, post_attention_layernorm, mlp.{gate,up,down}_proj}, norm}, lm_head.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include <vector>

#include "hasten/core/value.h"
#include "hasten/models/causal_lm_module.h"
#include "hasten/models/rotary.h"
#include "hasten/plan/attention_heads.h"

namespace hasten::models {

struct LlamaConfig {
  int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32;
  int64_t num_attention_heads = 32, num_key_value_heads = 32;
  int64_t head_dim = 0;  ///< 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  int64_t sliding_window = 0;  ///< 0: none
  /// Layers that the window holds for, an entry a layer (layer_types, or max_window_layers of Qwen2). Empty: all.
  std::vector<bool> windowed_layers = {};
  double rms_norm_eps = 1e-6, initializer_range = 0.02;
  bool qkv_bias = false;  ///< Qwen2
  bool o_bias = false, mlp_bias = false;
  bool tie_word_embeddings = false;
  RotaryConfig rotary = {};

  bool is_windowed(int64_t layer) const {
    return sliding_window > 0 && (windowed_layers.empty() || windowed_layers[static_cast<size_t>(layer)]);
  }
  int64_t resolved_head_dim() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }
  /// Reads config.json of model types llama, mistral and qwen2; rope_parameters, or the older rope_theta and
  /// rope_scaling. Throws: UsageError for another type or a setting that is not there.
  static LlamaConfig from_json(const core::Value& config);
};

/// Root-mean-square norm, computed in float32.
struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl(int64_t hidden, double eps);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

struct LlamaBlockImpl : torch::nn::Module, plan::AttentionHeads {
  LlamaBlockImpl(const LlamaConfig& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles, const detail::AttentionContext& context);
  std::vector<plan::HeadCount> head_counts() const override {
    return {{"heads", num_heads_}, {"key-value heads", num_kv_heads_}};
  }

 private:
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr}, gate_{nullptr}, up_{nullptr}, down_{nullptr};
  int64_t num_heads_, num_kv_heads_, head_dim_, layer_;
};
TORCH_MODULE(LlamaBlock);

struct LlamaImpl : CausalLmModule {
  explicit LlamaImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) override;
  int64_t num_layers() const override { return config_.num_hidden_layers; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.max_position_embeddings; }
  std::vector<std::string> no_split_module_classes() const override { return {"LlamaBlock"}; }

 private:
  LlamaConfig config_;
  torch::nn::Embedding embed_tokens_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  RmsNorm norm_{nullptr};
  detail::LmHead lm_head_{nullptr};
  at::Tensor inverse_frequencies_;
};
TORCH_MODULE(Llama);

}  // namespace hasten::models
