// See bert.h.
#include "hasten/models/bert.h"

#include <torch/types.h>

#include "hasten/core/error.h"
#include "hasten/models/causal_lm_module.h"
#include "models/config_reader.h"

namespace hasten::models {
namespace {

torch::nn::LayerNorm bert_norm(const BertConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

/// Returns a module that only gives its children a name.
std::shared_ptr<torch::nn::Module> named_part(torch::nn::Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<torch::nn::Module>("Bert" + name));
}

}  // namespace

BertConfig BertConfig::from_json(const core::Value& value) {
  const detail::ConfigReader read(value, "bert");
  BertConfig config;
  config.vocab_size = read.integer("vocab_size", config.vocab_size);
  config.hidden_size = read.integer("hidden_size", config.hidden_size);
  config.num_hidden_layers = read.integer("num_hidden_layers", config.num_hidden_layers);
  config.num_attention_heads = read.integer("num_attention_heads", config.num_attention_heads);
  config.intermediate_size = read.integer("intermediate_size", config.intermediate_size);
  config.max_position_embeddings = read.integer("max_position_embeddings", config.max_position_embeddings);
  config.type_vocab_size = read.integer("type_vocab_size", config.type_vocab_size);
  config.pad_token_id = read.integer("pad_token_id", config.pad_token_id);
  config.num_labels = read.map("id2label") != nullptr ? static_cast<int64_t>(read.map("id2label")->as_map().size())
                                                      : read.integer("num_labels", config.num_labels);
  config.layer_norm_eps = read.number("layer_norm_eps", config.layer_norm_eps);
  config.initializer_range = read.number("initializer_range", config.initializer_range);
  config.hidden_dropout_prob = read.number("hidden_dropout_prob", config.hidden_dropout_prob);
  config.attention_probs_dropout_prob =
      read.number("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  config.classifier_dropout = read.number("classifier_dropout", config.classifier_dropout);
  const std::string activation = read.string("hidden_act", "gelu");
  config.tanh_gelu = read.one_of("hidden_act", activation, {"gelu", "gelu_new", "gelu_pytorch_tanh"}) != "gelu";
  read.one_of("position_embedding_type", read.string("position_embedding_type", "absolute"), {"absolute"});
  read.require_divides("num_attention_heads", config.num_attention_heads, "hidden_size", config.hidden_size);
  return config;
}

BertLayerImpl::BertLayerImpl(const BertConfig& config)
    : num_heads_(config.num_attention_heads),
      attention_dropout_(config.attention_probs_dropout_prob),
      tanh_gelu_(config.tanh_gelu) {
  const int64_t hidden = config.hidden_size;
  const auto attention = named_part(*this, "attention");
  const auto self = named_part(*attention, "self"), attention_output = named_part(*attention, "output");
  query_ = self->register_module("query", torch::nn::Linear(hidden, hidden));
  key_ = self->register_module("key", torch::nn::Linear(hidden, hidden));
  value_ = self->register_module("value", torch::nn::Linear(hidden, hidden));
  attention_dense_ = attention_output->register_module("dense", torch::nn::Linear(hidden, hidden));
  attention_norm_ = attention_output->register_module("LayerNorm", bert_norm(config));
  intermediate_ =
      named_part(*this, "intermediate")->register_module("dense", torch::nn::Linear(hidden, config.intermediate_size));
  const auto output = named_part(*this, "output");
  output_ = output->register_module("dense", torch::nn::Linear(config.intermediate_size, hidden));
  output_norm_ = output->register_module("LayerNorm", bert_norm(config));
  dropout_ = output->register_module("dropout", torch::nn::Dropout(config.hidden_dropout_prob));
}

at::Tensor BertLayerImpl::forward(const at::Tensor& x, const at::Tensor& mask) {
  const int64_t batch = x.size(0), tokens = x.size(1), hidden = x.size(2);
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({batch, tokens, num_heads_, hidden / num_heads_}).transpose(1, 2);
  };
  const auto attended = at::scaled_dot_product_attention(
      by_head(query_(x)), by_head(key_(x)), by_head(value_(x)),
      mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt, is_training() ? attention_dropout_ : 0.0);
  const auto joined = attended.transpose(1, 2).reshape({batch, tokens, hidden});
  const auto middle = attention_norm_(dropout_(attention_dense_(joined)) + x);
  return output_norm_(dropout_(output_(at::gelu(intermediate_(middle), tanh_gelu_ ? "tanh" : "none"))) + middle);
}

BertImpl::BertImpl(const BertConfig& config, bool with_pooler) : torch::nn::Module("Bert"), config_(config) {
  const auto embeddings = named_part(*this, "embeddings");
  const int64_t hidden = config.hidden_size;
  words_ = embeddings->register_module(
      "word_embeddings",
      torch::nn::Embedding(torch::nn::EmbeddingOptions(config.vocab_size, hidden).padding_idx(config.pad_token_id)));
  positions_ =
      embeddings->register_module("position_embeddings", torch::nn::Embedding(config.max_position_embeddings, hidden));
  types_ = embeddings->register_module("token_type_embeddings", torch::nn::Embedding(config.type_vocab_size, hidden));
  norm_ = embeddings->register_module("LayerNorm", bert_norm(config));
  dropout_ = embeddings->register_module("dropout", torch::nn::Dropout(config.hidden_dropout_prob));
  layers_ = named_part(*this, "encoder")->register_module("layer", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_->push_back(BertLayer(config));
  if (with_pooler) pooler_ = named_part(*this, "pooler")->register_module("dense", torch::nn::Linear(hidden, hidden));
  detail::initialize_normal(*this, config.initializer_range);
  const torch::NoGradGuard no_grad;
  words_->weight[config.pad_token_id].zero_();
}

std::pair<at::Tensor, at::Tensor> BertImpl::forward(const at::Tensor& ids, const at::Tensor& attention_mask,
                                                    const at::Tensor& token_types) {
  if (ids.dim() != 2 || ids.size(1) > config_.max_position_embeddings) {
    throw UsageError(Origin{"models"}, "Bert takes token ids [batch, tokens] with at most ",
                     config_.max_position_embeddings, " tokens; these are ", ids.sizes(), ". Truncate the texts.");
  }
  const auto places = at::arange(ids.size(1), ids.options());
  auto x = words_(ids) + positions_(places) + types_(token_types.defined() ? token_types : at::zeros_like(ids));
  x = dropout_(norm_(x));
  at::Tensor mask;
  if (attention_mask.defined()) mask = attention_mask.to(at::kBool).view({ids.size(0), 1, 1, ids.size(1)});
  for (const auto& layer : *layers_) x = layer->as<BertLayer>()->forward(x, mask);
  return {x, pooler_.is_empty() ? at::Tensor() : pooler_(x.select(1, 0)).tanh()};
}

BertForSequenceClassificationImpl::BertForSequenceClassificationImpl(const BertConfig& config)
    : torch::nn::Module("BertForSequenceClassification") {
  bert_ = register_module("bert", Bert(config));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.classifier_dropout < 0 ? config.hidden_dropout_prob
                                                                                         : config.classifier_dropout));
  classifier_ = register_module("classifier", torch::nn::Linear(config.hidden_size, config.num_labels));
  detail::initialize_normal(*classifier_, config.initializer_range);
}

at::Tensor BertForSequenceClassificationImpl::forward(const at::Tensor& ids, const at::Tensor& attention_mask,
                                                      const at::Tensor& token_types) {
  return classifier_(dropout_(bert_->forward(ids, attention_mask, token_types).second));
}

BertForPreTrainingImpl::BertForPreTrainingImpl(const BertConfig& config)
    : torch::nn::Module("BertForPreTraining"), tanh_gelu_(config.tanh_gelu) {
  bert_ = register_module("bert", Bert(config));
  const auto heads = named_part(*this, "cls"), words = named_part(*heads, "predictions");
  word_bias_ = words->register_parameter("bias", at::zeros({config.vocab_size}));
  const auto transform = named_part(*words, "transform");
  transform_ = transform->register_module("dense", torch::nn::Linear(config.hidden_size, config.hidden_size));
  norm_ = transform->register_module("LayerNorm", bert_norm(config));
  const auto decoder = named_part(*words, "decoder");
  word_weight_ = decoder->register_parameter("weight", bert_->word_weight());
  decoder->register_parameter("bias", word_bias_);
  order_ = heads->register_module("seq_relationship", torch::nn::Linear(config.hidden_size, 2));
  detail::initialize_normal(*transform_, config.initializer_range);
  detail::initialize_normal(*order_, config.initializer_range);
}

std::pair<at::Tensor, at::Tensor> BertForPreTrainingImpl::forward(const at::Tensor& ids,
                                                                  const at::Tensor& attention_mask,
                                                                  const at::Tensor& token_types) {
  const auto [states, first] = bert_->forward(ids, attention_mask, token_types);
  const at::Tensor inner = norm_(at::gelu(transform_(states), tanh_gelu_ ? "tanh" : "none"));
  return {at::linear(inner, word_weight_, word_bias_), order_(first)};
}

}  // namespace hasten::models
