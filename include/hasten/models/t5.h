// T5 (Raffel et al., 2019): an encoder and a decoder with relative positions. Names are those of transformers: shared,
// encoder.block.N.layer.{0.SelfAttention, 1.DenseReluDense}, decoder.block.N.layer.1.EncDecAttention, lm_head.
//
// Weights load from transformers' files by name (checkpoint/weights.h). Norms come before the layers, without means and
// biases, and attention is not scaled, as in the paper.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include "hasten/core/value.h"
#include "hasten/models/causal_lm_module.h"
#include "hasten/models/llama.h"
#include "hasten/plan/attention_heads.h"

namespace hasten::models {

struct T5Config {
  int64_t vocab_size = 32128, d_model = 512, d_kv = 64, d_ff = 2048;
  /// Blocks of the encoder and of the decoder; below 0: as many.
  int64_t num_layers = 6, num_decoder_layers = -1, num_heads = 8;
  int64_t relative_attention_num_buckets = 32, relative_attention_max_distance = 128;
  double dropout_rate = 0.1, layer_norm_epsilon = 1e-6, initializer_factor = 1.0;
  bool gated = false;     ///< "gated-gelu" (version 1.1); false: "relu"
  bool tied_head = true;  ///< the head is the embedding, and its input is scaled by d_model^-0.5
  int64_t resolved_decoder_layers() const { return num_decoder_layers < 0 ? num_layers : num_decoder_layers; }

  /// Reads config.json of transformers. Throws: UsageError for another model_type or feed_forward_proj.
  static T5Config from_json(const core::Value& config);
};

/// Attention over `keys_of`: the block's own states, or the encoder's.
struct T5AttentionImpl : torch::nn::Module, plan::AttentionHeads {
  T5AttentionImpl(const T5Config& config, bool has_positions, bool is_bidirectional);
  /// `mask` is added to scores [batch or 1, heads or 1, tokens, keys]; undefined: nothing is.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& keys_of, const at::Tensor& mask);
  /// Returns what relative positions add to scores, [1, heads, tokens, keys].
  at::Tensor position_bias(int64_t tokens, int64_t keys, c10::Device device);
  std::vector<plan::HeadCount> head_counts() const override { return {{"heads", num_heads_}}; }

 private:
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  torch::nn::Embedding relative_attention_bias_{nullptr};
  int64_t num_heads_, head_dim_, num_buckets_, max_distance_;
  double dropout_;
  bool is_bidirectional_;
};
TORCH_MODULE(T5Attention);

/// Masks that the blocks of a stack add to their scores.
struct T5Context {
  at::Tensor mask;
  /// Only for a decoder: the encoder's states, and their mask.
  at::Tensor encoded, encoded_mask;
};

struct T5BlockImpl : torch::nn::Module {
  /// The first block of a stack has its relative positions.
  T5BlockImpl(const T5Config& config, bool is_decoder, bool is_first);
  at::Tensor forward(at::Tensor x, const T5Context& context);
  T5Attention& self_attention() { return self_attention_; }

 private:
  T5Attention self_attention_{nullptr}, cross_attention_{nullptr};
  torch::nn::Linear wi_{nullptr}, wi_0_{nullptr}, wi_1_{nullptr}, wo_{nullptr};
  RmsNorm self_norm_{nullptr}, cross_norm_{nullptr}, output_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(T5Block);

/// transformers' T5ForConditionalGeneration.
struct T5Impl : torch::nn::Module {
  explicit T5Impl(const T5Config& config);
  /// Returns logits [batch, decoder tokens, vocabulary]. Takes ids [batch, tokens] of the encoder, and a mask of the
  /// same shape: 0 for padding, undefined for none. Ids [batch, decoder tokens] of the decoder attend to those before.
  /// Throws: UsageError for ids of another shape.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask, const at::Tensor& decoder_ids);
  const T5Config& config() const noexcept { return config_; }

 private:
  at::Tensor run(torch::nn::ModuleList& blocks, const RmsNorm& norm, const at::Tensor& ids, T5Context context);
  void initialize();

  T5Config config_;
  torch::nn::Embedding shared_{nullptr};
  torch::nn::ModuleList encoder_blocks_{nullptr}, decoder_blocks_{nullptr};
  RmsNorm encoder_norm_{nullptr}, decoder_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  detail::LmHead lm_head_{nullptr};
};
TORCH_MODULE(T5);

}  // namespace hasten::models
