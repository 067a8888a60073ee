// GPT-2, with transformers' names: transformer.{wte, wpe, h.N.{ln_1, attn.{c_attn, c_proj}, ln_2, mlp.{c_fc, c_proj}},
// ln_f}.
//
// Weights of c_attn, c_proj and c_fc are those of torch's Linear, [out, in]. transformers stores them transposed, and
// causal_lm.h loads them as transposed views.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/normalization.h>

#include "hasten/core/value.h"
#include "hasten/models/causal_lm_module.h"
#include "hasten/plan/attention_heads.h"

namespace hasten::models {

struct Gpt2Config {
  int64_t vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12;
  int64_t n_inner = 0;  ///< 0: 4 * n_embd
  double layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  bool tanh_gelu = true;  ///< "gelu_new"; false: "gelu"
  bool tie_word_embeddings = true;

  /// Reads config.json of transformers. Throws: UsageError for a setting that is not there (another activation, scaled
  /// attention by layer).
  static Gpt2Config from_json(const core::Value& config);
};

struct Gpt2BlockImpl : torch::nn::Module, plan::AttentionHeads {
  Gpt2BlockImpl(const Gpt2Config& config, int64_t layer);
  at::Tensor forward(const at::Tensor& x, const detail::AttentionContext& context);
  std::vector<plan::HeadCount> head_counts() const override { return {{"heads", num_heads_}}; }

 private:
  torch::nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  torch::nn::Linear c_attn_{nullptr}, attn_c_proj_{nullptr}, c_fc_{nullptr}, mlp_c_proj_{nullptr};
  int64_t num_heads_, layer_;
  bool tanh_gelu_;
};
TORCH_MODULE(Gpt2Block);

struct Gpt2Impl : CausalLmModule {
  explicit Gpt2Impl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) override;
  int64_t num_layers() const override { return config_.n_layer; }
  int64_t vocabulary() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.n_positions; }
  std::vector<std::string> no_split_module_classes() const override { return {"Gpt2Block"}; }

 private:
  Gpt2Config config_;
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};
  torch::nn::ModuleList blocks_{nullptr};
  torch::nn::LayerNorm ln_f_{nullptr};
  detail::LmHead lm_head_{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace hasten::models
