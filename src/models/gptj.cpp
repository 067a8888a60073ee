// See gptj.h.
#include "hasten/models/gptj.h"

#include <torch/types.h>

#include "hasten/core/error.h"
#include "models/config_reader.h"

namespace hasten::models {
namespace {

torch::nn::LayerNorm norm_of(const GptjConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

torch::nn::Linear plain_linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// Cosines and sines [batch, 1, tokens, rotary_dim], each number twice: neighbours are a pair.
RotaryAngles pair_angles(const at::Tensor& inverse_frequencies, const at::Tensor& positions, at::ScalarType type) {
  const at::Tensor turns = positions.to(at::kFloat).unsqueeze(-1) * inverse_frequencies;
  const at::Tensor angles = turns.repeat_interleave(2, -1).unsqueeze(1);
  return {angles.cos().to(type), angles.sin().to(type)};
}

// Turns the first numbers of each head of x [batch, heads, tokens, head_dim], and leaves the others.
at::Tensor turn_pairs(const at::Tensor& x, const RotaryAngles& angles, int64_t rotary_dim) {
  const at::Tensor turned = x.slice(-1, 0, rotary_dim);
  const at::Tensor even = turned.slice(-1, 0, rotary_dim, 2), odd = turned.slice(-1, 1, rotary_dim, 2);
  const at::Tensor crossed = at::stack({-odd, even}, -1).flatten(-2);
  const at::Tensor rotated = turned * angles.cos + crossed * angles.sin;
  return at::cat({rotated, x.slice(-1, rotary_dim)}, -1);
}

}  // namespace

GptjConfig GptjConfig::from_json(const core::Value& value) {
  const detail::ConfigReader read(value, "gptj");
  GptjConfig config;
  config.vocab_size = read.integer("vocab_size", config.vocab_size);
  config.n_positions = read.integer("n_positions", config.n_positions);
  config.n_embd = read.integer("n_embd", config.n_embd);
  config.n_layer = read.integer("n_layer", config.n_layer);
  config.n_head = read.integer("n_head", config.n_head);
  config.rotary_dim = read.integer("rotary_dim", value.find("rotary_dim") == nullptr ? config.rotary_dim : 0);
  config.n_inner = read.integer("n_inner", 0);
  config.layer_norm_epsilon = read.number("layer_norm_epsilon", config.layer_norm_epsilon);
  config.initializer_range = read.number("initializer_range", config.initializer_range);
  read.require("tie_word_embeddings", read.flag("tie_word_embeddings", false), false);
  const std::string activation = read.string("activation_function", "gelu_new");
  config.tanh_gelu =
      read.one_of("activation_function", activation, {"gelu_new", "gelu_pytorch_tanh", "gelu"}) != "gelu";
  read.require_divides("n_head", config.n_head, "n_embd", config.n_embd);
  const int64_t head_dim = config.n_embd / config.n_head;
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0 || config.rotary_dim > head_dim) {
    throw UsageError(Origin{"models"}, "gptj: rotary_dim = ", config.rotary_dim, " is not supported; expected an even ",
                     "number from 2 to n_embd / n_head = ", head_dim, ".");
  }
  return config;
}

GptjBlockImpl::GptjBlockImpl(const GptjConfig& config, int64_t layer)
    : num_heads_(config.n_head), rotary_dim_(config.rotary_dim), layer_(layer), tanh_gelu_(config.tanh_gelu) {
  const int64_t hidden = config.n_embd, inner = config.n_inner > 0 ? config.n_inner : 4 * hidden;
  ln_1_ = register_module("ln_1", norm_of(config));
  auto attention = register_module("attn", std::make_shared<torch::nn::Module>("GptjAttention"));
  k_ = attention->register_module("k_proj", plain_linear(hidden, hidden));
  v_ = attention->register_module("v_proj", plain_linear(hidden, hidden));
  q_ = attention->register_module("q_proj", plain_linear(hidden, hidden));
  out_ = attention->register_module("out_proj", plain_linear(hidden, hidden));
  auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>("GptjMlp"));
  fc_in_ = mlp->register_module("fc_in", torch::nn::Linear(hidden, inner));
  fc_out_ = mlp->register_module("fc_out", torch::nn::Linear(inner, hidden));
}

at::Tensor GptjBlockImpl::forward(const at::Tensor& x, const RotaryAngles& angles,
                                  const detail::AttentionContext& context) {
  const int64_t batch = x.size(0), tokens = x.size(1), hidden = x.size(2);
  const at::Tensor normed = ln_1_(x);
  const auto by_head = [&](const at::Tensor& part) {
    return part.view({batch, tokens, num_heads_, hidden / num_heads_}).transpose(1, 2);
  };
  const at::Tensor queries = turn_pairs(by_head(q_(normed)), angles, rotary_dim_);
  const at::Tensor keys = turn_pairs(by_head(k_(normed)), angles, rotary_dim_);
  const at::Tensor attended = detail::attend(queries, keys, by_head(v_(normed)), context, layer_);
  return out_(attended) + fc_out_(at::gelu(fc_in_(normed), tanh_gelu_ ? "tanh" : "none")) + x;
}

GptjImpl::GptjImpl(const GptjConfig& config) : CausalLmModule("Gptj"), config_(config) {
  auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>("GptjTransformer"));
  wte_ = transformer->register_module("wte", torch::nn::Embedding(config.vocab_size, config.n_embd));
  blocks_ = transformer->register_module("h", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.n_layer; ++i) blocks_->push_back(GptjBlock(config, i));
  ln_f_ = transformer->register_module("ln_f", norm_of(config));
  lm_head_ = register_module("lm_head", torch::nn::Linear(config.n_embd, config.vocab_size));
  inverse_frequencies_ = rotary_inverse_frequencies({}, config.rotary_dim);
  detail::initialize_normal(*this, config.initializer_range);
}

at::Tensor GptjImpl::forward(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) {
  const int64_t all = ids.size(-1) + (cache == nullptr ? 0 : cache->num_tokens());
  if (all > config_.n_positions) {
    throw UsageError(Origin{"models"}, all, " tokens are more than the model's ", config_.n_positions,
                     " positions. Shorten the prompt or max_new_tokens.");
  }
  const at::ScalarType type = wte_->weight.scalar_type();
  const auto context = detail::attention_context(ids, attention_mask, cache, type);
  // Not a buffer, which files would hold: it follows the tokens' device.
  if (inverse_frequencies_.device() != ids.device()) inverse_frequencies_ = inverse_frequencies_.to(ids.device());
  const RotaryAngles angles = pair_angles(inverse_frequencies_, context.positions, type);
  at::Tensor x = wte_(ids);
  for (const auto& block : *blocks_) x = block->as<GptjBlock>()->forward(x, angles, context);
  return lm_head_(ln_f_(x));
}

}  // namespace hasten::models
