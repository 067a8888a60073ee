// GPT-J, with transformers' names: transformer.{wte, h.N.{ln_1, attn.{q,k,v,out}_proj, mlp.{fc_in, fc_out}}, ln_f},
// lm_head.
//
// Attention and the feed-forward part read the same norm and are added together. Rotary embeddings turn the first
// rotary_dim numbers of a head, neighbours against each other.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/normalization.h>

#include "hasten/core/value.h"
#include "hasten/models/causal_lm_module.h"
#include "hasten/models/rotary.h"

namespace hasten::models {

struct GptjConfig {
  int64_t vocab_size = 50400, n_positions = 2048, n_embd = 4096, n_layer = 28, n_head = 16;
  int64_t rotary_dim = 64;  ///< of each head; even, at most n_embd / n_head
  int64_t n_inner = 0;      ///< 0: 4 * n_embd
  double layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  bool tanh_gelu = true;  ///< "gelu_new"; false: "gelu"

  /// Reads config.json of transformers. Throws: UsageError for a setting that is not there (another activation, no
  /// rotary_dim).
  static GptjConfig from_json(const core::Value& config);
};

struct GptjBlockImpl : torch::nn::Module {
  GptjBlockImpl(const GptjConfig& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles, const detail::AttentionContext& context);

 private:
  torch::nn::LayerNorm ln_1_{nullptr};
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, out_{nullptr}, fc_in_{nullptr}, fc_out_{nullptr};
  int64_t num_heads_, rotary_dim_, layer_;
  bool tanh_gelu_;
};
TORCH_MODULE(GptjBlock);

struct GptjImpl : CausalLmModule {
  explicit GptjImpl(const GptjConfig& config);
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) override;
  int64_t num_layers() const override { return config_.n_layer; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.n_positions; }
  std::vector<std::string> no_split_module_classes() const override { return {"GptjBlock"}; }

 private:
  GptjConfig config_;
  torch::nn::Embedding wte_{nullptr};
  torch::nn::ModuleList blocks_{nullptr};
  torch::nn::LayerNorm ln_f_{nullptr};
  torch::nn::Linear lm_head_{nullptr};
  at::Tensor inverse_frequencies_;
};
TORCH_MODULE(Gptj);

}  // namespace hasten::models
