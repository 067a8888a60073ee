// BERT (Devlin et al., 2018) and a classifier of texts or pairs of texts on it. Names are those of transformers:
// embeddings, encoder.layer.N.{attention.{self, output}, intermediate, output}, pooler.
//
// Weights load from transformers' files by name (checkpoint/weights.h). Norms come after the residual sums, as in the
// paper.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <utility>

#include "hasten/core/value.h"
#include "hasten/plan/attention_heads.h"

namespace hasten::models {

struct BertConfig {
  int64_t vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072;
  int64_t max_position_embeddings = 512, type_vocab_size = 2, pad_token_id = 0, num_labels = 2;
  double layer_norm_eps = 1e-12, initializer_range = 0.02, hidden_dropout_prob = 0.1,
         attention_probs_dropout_prob = 0.1;
  double classifier_dropout = -1;  ///< below 0: hidden_dropout_prob
  bool tanh_gelu = false;          ///< "gelu_new"; false: "gelu"

  /// Reads config.json of transformers. Throws: UsageError for a setting that is not there (another activation,
  /// relative positions).
  static BertConfig from_json(const core::Value& config);
};

struct BertLayerImpl : torch::nn::Module, plan::AttentionHeads {
  explicit BertLayerImpl(const BertConfig& config);
  /// `x` [batch, tokens, hidden]; `mask` as scaled_dot_product_attention takes it, or undefined.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask);
  std::vector<plan::HeadCount> head_counts() const override { return {{"heads", num_heads_}}; }

 private:
  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, attention_dense_{nullptr}, intermediate_{nullptr},
      output_{nullptr};
  torch::nn::LayerNorm attention_norm_{nullptr}, output_norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  int64_t num_heads_;
  double attention_dropout_;
  bool tanh_gelu_;
};
TORCH_MODULE(BertLayer);

struct BertImpl : torch::nn::Module {
  explicit BertImpl(const BertConfig& config, bool with_pooler = true);
  /// Takes token ids [batch, tokens], a mask of the same shape, and the number of each token's text. The mask is 0 for
  /// padding; undefined means no padding. Undefined numbers are 0. Returns the hidden states [batch, tokens, hidden],
  /// and those of the first token behind the pooler [batch, hidden], undefined without a pooler.
  /// Throws: UsageError for ids of another shape, or more tokens than the model has
  /// positions.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& ids, const at::Tensor& attention_mask = {},
                                            const at::Tensor& token_types = {});
  const at::Tensor& word_weight() const { return words_->weight; }

 private:
  BertConfig config_;
  torch::nn::Embedding words_{nullptr}, positions_{nullptr}, types_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  torch::nn::Linear pooler_{nullptr};
};
TORCH_MODULE(Bert);

/// transformers' BertForSequenceClassification: names bert.… and classifier.
struct BertForSequenceClassificationImpl : torch::nn::Module {
  explicit BertForSequenceClassificationImpl(const BertConfig& config);
  /// Scores [batch, num_labels]; arguments as BertImpl::forward.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask, const at::Tensor& token_types);

 private:
  Bert bert_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(BertForSequenceClassification);

/// transformers' BertForPreTraining: heads for masked words and for the order of two texts. Names bert.… and cls.….
struct BertForPreTrainingImpl : torch::nn::Module {
  explicit BertForPreTrainingImpl(const BertConfig& config);
  /// Returns scores of words [batch, tokens, vocabulary] and of orders [batch, 2]; arguments as BertImpl::forward.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& ids, const at::Tensor& attention_mask,
                                            const at::Tensor& token_types);

 private:
  Bert bert_{nullptr};
  torch::nn::Linear transform_{nullptr}, order_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  at::Tensor word_weight_, word_bias_;
  bool tanh_gelu_;
};
TORCH_MODULE(BertForPreTraining);

}  // namespace hasten::models
