// See gpt2.h.
#include "hasten/models/gpt2.h"

#include <torch/types.h>

#include "hasten/core/error.h"
#include "models/config_reader.h"

namespace hasten::models {
namespace {

torch::nn::LayerNorm layer_norm(const Gpt2Config& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

}  // namespace

Gpt2Config Gpt2Config::from_json(const core::Value& value) {
  const detail::ConfigReader read(value, "gpt2");
  Gpt2Config config;
  config.vocab_size = read.integer("vocab_size", config.vocab_size);
  config.n_positions = read.integer("n_positions", config.n_positions);
  config.n_embd = read.integer("n_embd", config.n_embd);
  config.n_layer = read.integer("n_layer", config.n_layer);
  config.n_head = read.integer("n_head", config.n_head);
  config.n_inner = read.integer("n_inner", 0);
  config.layer_norm_epsilon = read.number("layer_norm_epsilon", config.layer_norm_epsilon);
  config.initializer_range = read.number("initializer_range", config.initializer_range);
  config.tie_word_embeddings = read.flag("tie_word_embeddings", true);
  const std::string activation = read.string("activation_function", "gelu_new");
  config.tanh_gelu =
      read.one_of("activation_function", activation, {"gelu_new", "gelu_pytorch_tanh", "gelu"}) != "gelu";
  read.require("scale_attn_weights", read.flag("scale_attn_weights", true), true);
  read.require("scale_attn_by_inverse_layer_idx", read.flag("scale_attn_by_inverse_layer_idx", false), false);
  read.require_divides("n_head", config.n_head, "n_embd", config.n_embd);
  return config;
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Config& config, int64_t layer)
    : num_heads_(config.n_head), layer_(layer), tanh_gelu_(config.tanh_gelu) {
  const int64_t hidden = config.n_embd, inner = config.n_inner > 0 ? config.n_inner : 4 * hidden;
  ln_1_ = register_module("ln_1", layer_norm(config));
  auto attn = register_module("attn", std::make_shared<torch::nn::Module>("Gpt2Attention"));
  c_attn_ = attn->register_module("c_attn", torch::nn::Linear(hidden, 3 * hidden));
  attn_c_proj_ = attn->register_module("c_proj", torch::nn::Linear(hidden, hidden));
  ln_2_ = register_module("ln_2", layer_norm(config));
  auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>("Gpt2Mlp"));
  c_fc_ = mlp->register_module("c_fc", torch::nn::Linear(hidden, inner));
  mlp_c_proj_ = mlp->register_module("c_proj", torch::nn::Linear(inner, hidden));
}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x, const detail::AttentionContext& context) {
  const int64_t batch = x.size(0), tokens = x.size(1), hidden = x.size(2);
  const auto parts = c_attn_(ln_1_(x)).chunk(3, -1);
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({batch, tokens, num_heads_, hidden / num_heads_}).transpose(1, 2);
  };
  const at::Tensor attended = detail::attend(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), context, layer_);
  const at::Tensor middle = x + attn_c_proj_(attended);
  return middle + mlp_c_proj_(at::gelu(c_fc_(ln_2_(middle)), tanh_gelu_ ? "tanh" : "none"));
}

Gpt2Impl::Gpt2Impl(const Gpt2Config& config) : CausalLmModule("Gpt2"), config_(config) {
  auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>("Gpt2Transformer"));
  wte_ = transformer->register_module("wte", torch::nn::Embedding(config.vocab_size, config.n_embd));
  wpe_ = transformer->register_module("wpe", torch::nn::Embedding(config.n_positions, config.n_embd));
  blocks_ = transformer->register_module("h", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.n_layer; ++i) blocks_->push_back(Gpt2Block(config, i));
  ln_f_ = transformer->register_module("ln_f", layer_norm(config));
  lm_head_ = register_module("lm_head", detail::LmHead(config.n_embd, config.vocab_size,
                                                       config.tie_word_embeddings ? wte_->weight : at::Tensor()));
  detail::initialize_normal(*this, config.initializer_range);
}

at::Tensor Gpt2Impl::forward(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) {
  const int64_t all = ids.size(-1) + (cache == nullptr ? 0 : cache->num_tokens());
  if (all > config_.n_positions) {
    throw UsageError(Origin{"models"}, all, " tokens are more than the model's ", config_.n_positions,
                     " positions. Shorten the prompt or max_new_tokens.");
  }
  const auto context = detail::attention_context(ids, attention_mask, cache, wte_->weight.scalar_type());
  at::Tensor x = wte_(ids) + wpe_(context.positions);
  for (const auto& block : *blocks_) x = block->as<Gpt2Block>()->forward(x, context);
  return lm_head_->forward(ln_f_(x));
}

}  // namespace hasten::models
