// See t5.h.
#include "hasten/models/t5.h"

#include <torch/nn/init.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <utility>

#include "hasten/core/error.h"
#include "models/config_reader.h"

namespace hasten::models {
namespace {

torch::nn::Linear t5_linear(torch::nn::Module& parent, const std::string& name, int64_t in, int64_t out) {
  return parent.register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
}

// Each distance up to half of the buckets has its own; further ones share them by their logarithm.
at::Tensor t5_buckets(const at::Tensor& distance, bool is_bidirectional, int64_t num_buckets, int64_t max_distance) {
  at::Tensor base = at::zeros_like(distance), away = distance;
  if (is_bidirectional) {
    num_buckets /= 2;
    base = distance.gt(0).to(at::kLong) * num_buckets;
    away = distance.abs();
  } else {
    away = distance.clamp_max(0).neg();
  }
  const int64_t exact = num_buckets / 2;
  const double scale = static_cast<double>(num_buckets - exact) /
                       std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const at::Tensor ratio = away.clamp_min(1).to(at::kFloat) / static_cast<double>(exact);
  const at::Tensor far = (ratio.log() * scale).to(at::kLong).add(exact).clamp_max(num_buckets - 1);
  return base + at::where(away.lt(exact), away, far);
}

at::Tensor t5_additive(const at::Tensor& allowed, c10::ScalarType dtype) {
  return at::zeros(allowed.sizes(), allowed.options().dtype(dtype))
      .masked_fill(at::logical_not(allowed), -std::numeric_limits<float>::max());
}

at::Tensor t5_sum(const at::Tensor& one, const at::Tensor& other) {
  if (!one.defined()) return other;
  return other.defined() ? one + other : one;
}

void require_t5_ids(const at::Tensor& ids, const char* of) {
  if (ids.dim() == 2 && c10::isIntegralType(ids.scalar_type(), false)) return;
  throw UsageError(Origin{"models"}, "ids of T5's ", of, " are ", c10::toString(ids.scalar_type()), " of shape [",
                   join(ids.sizes()), "]; expected integers of shape [batch, tokens].");
}

}  // namespace

T5Config T5Config::from_json(const core::Value& value) {
  const detail::ConfigReader read(value, "t5");
  read.one_of("model_type", read.string("model_type", "t5"), {"t5", "mt5"});
  T5Config config;
  config.vocab_size = read.integer("vocab_size", config.vocab_size);
  config.d_model = read.integer("d_model", config.d_model);
  config.d_kv = read.integer("d_kv", config.d_kv);
  config.d_ff = read.integer("d_ff", config.d_ff);
  config.num_layers = read.integer("num_layers", config.num_layers);
  config.num_decoder_layers = read.integer("num_decoder_layers", config.num_layers);
  config.num_heads = read.integer("num_heads", config.num_heads);
  config.relative_attention_num_buckets =
      read.integer("relative_attention_num_buckets", config.relative_attention_num_buckets);
  config.relative_attention_max_distance =
      read.integer("relative_attention_max_distance", config.relative_attention_max_distance);
  config.dropout_rate = read.number("dropout_rate", config.dropout_rate);
  config.layer_norm_epsilon = read.number("layer_norm_epsilon", config.layer_norm_epsilon);
  config.initializer_factor = read.number("initializer_factor", config.initializer_factor);
  const std::string activation = read.string("feed_forward_proj", "relu");
  config.gated = read.one_of("feed_forward_proj", activation, {"relu", "gated-gelu"}) == "gated-gelu";
  config.tied_head = read.flag("tie_word_embeddings", true);
  return config;
}

T5AttentionImpl::T5AttentionImpl(const T5Config& config, bool has_positions, bool is_bidirectional)
    : torch::nn::Module("T5Attention"),
      num_heads_(config.num_heads),
      head_dim_(config.d_kv),
      num_buckets_(config.relative_attention_num_buckets),
      max_distance_(config.relative_attention_max_distance),
      dropout_(config.dropout_rate),
      is_bidirectional_(is_bidirectional) {
  const int64_t inner = num_heads_ * head_dim_;
  q_ = t5_linear(*this, "q", config.d_model, inner);
  k_ = t5_linear(*this, "k", config.d_model, inner);
  v_ = t5_linear(*this, "v", config.d_model, inner);
  o_ = t5_linear(*this, "o", inner, config.d_model);
  if (has_positions) {
    relative_attention_bias_ =
        register_module("relative_attention_bias", torch::nn::Embedding(num_buckets_, num_heads_));
  }
}

at::Tensor T5AttentionImpl::forward(const at::Tensor& x, const at::Tensor& keys_of, const at::Tensor& mask) {
  const auto by_head = [&](const at::Tensor& y) {
    return y.view({y.size(0), y.size(1), num_heads_, head_dim_}).transpose(1, 2);
  };
  const at::Tensor attended = at::scaled_dot_product_attention(
      by_head(q_(x)), by_head(k_(keys_of)), by_head(v_(keys_of)),
      mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt, is_training() ? dropout_ : 0.0,
      /*is_causal=*/false, /*scale=*/1.0);
  return o_(attended.transpose(1, 2).reshape({x.size(0), x.size(1), num_heads_ * head_dim_}));
}

at::Tensor T5AttentionImpl::position_bias(int64_t tokens, int64_t keys, c10::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor distance = at::arange(keys, options).unsqueeze(0) - at::arange(tokens, options).unsqueeze(1);
  const at::Tensor buckets = t5_buckets(distance, is_bidirectional_, num_buckets_, max_distance_);
  return relative_attention_bias_(buckets).permute({2, 0, 1}).unsqueeze(0);
}

T5BlockImpl::T5BlockImpl(const T5Config& config, bool is_decoder, bool is_first) : torch::nn::Module("T5Block") {
  auto layers = register_module("layer", torch::nn::ModuleList());
  const auto add_layer = [&](RmsNorm& norm) {
    auto layer = std::make_shared<torch::nn::Module>("T5Layer");
    norm = layer->register_module("layer_norm", RmsNorm(config.d_model, config.layer_norm_epsilon));
    layers->push_back(layer);
    return layer;
  };
  self_attention_ = add_layer(self_norm_)->register_module("SelfAttention", T5Attention(config, is_first, !is_decoder));
  if (is_decoder)
    cross_attention_ = add_layer(cross_norm_)->register_module("EncDecAttention", T5Attention(config, false, true));
  const auto output = add_layer(output_norm_)
                          ->register_module("DenseReluDense", std::make_shared<torch::nn::Module>("T5DenseReluDense"));
  if (config.gated) {
    wi_0_ = t5_linear(*output, "wi_0", config.d_model, config.d_ff);
    wi_1_ = t5_linear(*output, "wi_1", config.d_model, config.d_ff);
  } else {
    wi_ = t5_linear(*output, "wi", config.d_model, config.d_ff);
  }
  wo_ = t5_linear(*output, "wo", config.d_ff, config.d_model);
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout_rate));
}

at::Tensor T5BlockImpl::forward(at::Tensor x, const T5Context& context) {
  const at::Tensor normed = self_norm_->forward(x);
  x = x + dropout_(self_attention_->forward(normed, normed, context.mask));
  if (!cross_attention_.is_empty()) {
    x = x + dropout_(cross_attention_->forward(cross_norm_->forward(x), context.encoded, context.encoded_mask));
  }
  const at::Tensor inner = output_norm_->forward(x);
  const at::Tensor wide = wi_.is_empty() ? at::gelu(wi_0_(inner), "tanh") * wi_1_(inner) : at::relu(wi_(inner));
  return x + dropout_(wo_(dropout_(wide)));
}

T5Impl::T5Impl(const T5Config& config) : torch::nn::Module("T5"), config_(config) {
  shared_ = register_module("shared", torch::nn::Embedding(config.vocab_size, config.d_model));
  const auto add_stack = [&](const char* name, int64_t layers, bool is_decoder, RmsNorm& norm) {
    const auto stack = register_module(name, std::make_shared<torch::nn::Module>("T5Stack"));
    stack->register_module("embed_tokens", shared_);
    auto blocks = stack->register_module("block", torch::nn::ModuleList());
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(T5Block(config, is_decoder, i == 0));
    norm = stack->register_module("final_layer_norm", RmsNorm(config.d_model, config.layer_norm_epsilon));
    return blocks;
  };
  encoder_blocks_ = add_stack("encoder", config.num_layers, false, encoder_norm_);
  decoder_blocks_ = add_stack("decoder", config.resolved_decoder_layers(), true, decoder_norm_);
  lm_head_ = register_module(
      "lm_head", detail::LmHead(config.d_model, config.vocab_size, config.tied_head ? shared_->weight : at::Tensor()));
  dropout_ = register_module("dropout", torch::nn::Dropout(config.dropout_rate));
  initialize();
}

// As transformers: standard deviations by the sizes of inputs.
void T5Impl::initialize() {
  const torch::NoGradGuard no_grad;
  const double model = std::pow(static_cast<double>(config_.d_model), -0.5);
  for (const auto& item : named_parameters()) {
    if (item.value().dim() < 2) continue;
    double deviation = model;
    if (item.key().ends_with(".q.weight")) deviation *= std::pow(static_cast<double>(config_.d_kv), -0.5);
    if (item.key().ends_with(".o.weight"))
      deviation = std::pow(static_cast<double>(config_.num_heads * config_.d_kv), -0.5);
    if (item.key().ends_with(".wo.weight")) deviation = std::pow(static_cast<double>(config_.d_ff), -0.5);
    if (item.key().starts_with("shared") || item.key().starts_with("lm_head") || item.key().ends_with("tokens.weight"))
      deviation = 1.0;
    torch::nn::init::normal_(item.value(), 0.0, deviation * config_.initializer_factor);
  }
}

at::Tensor T5Impl::run(torch::nn::ModuleList& blocks, const RmsNorm& norm, const at::Tensor& ids, T5Context context) {
  at::Tensor x = dropout_(shared_(ids));
  if (!blocks->is_empty()) {
    auto& first = blocks[0]->as<T5Block>()->self_attention();
    context.mask = t5_sum(first->position_bias(ids.size(1), ids.size(1), ids.device()), context.mask);
  }
  for (const auto& block : *blocks) x = block->as<T5Block>()->forward(x, context);
  return dropout_(norm->forward(x));
}

at::Tensor T5Impl::forward(const at::Tensor& ids, const at::Tensor& attention_mask, const at::Tensor& decoder_ids) {
  require_t5_ids(ids, "encoder");
  require_t5_ids(decoder_ids, "decoder");
  const auto dtype = shared_->weight.scalar_type();
  T5Context encoder, decoder;
  if (attention_mask.defined()) {
    encoder.mask = t5_additive(attention_mask.to(at::kBool).view({ids.size(0), 1, 1, ids.size(1)}), dtype);
  }
  decoder.encoded_mask = encoder.mask;
  const int64_t tokens = decoder_ids.size(1);
  const at::Tensor before = at::ones({1, 1, tokens, tokens}, at::TensorOptions(ids.device()).dtype(at::kBool)).tril();
  decoder.mask = t5_additive(before, dtype);
  decoder.encoded = run(encoder_blocks_, encoder_norm_, ids, encoder);
  at::Tensor x = run(decoder_blocks_, decoder_norm_, decoder_ids, decoder);
  if (config_.tied_head) x = x * std::pow(static_cast<double>(config_.d_model), -0.5);
  return lm_head_->forward(x);
}

}  // namespace hasten::models
