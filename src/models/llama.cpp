// See llama.h.
#include "hasten/models/llama.h"

#include <torch/types.h>

#include "hasten/core/error.h"
#include "models/config_reader.h"

namespace hasten::models {
namespace {

torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

// rope_parameters {rope_type, rope_theta, …}, or rope_theta beside rope_scaling {rope_type or type, factor, …}.
RotaryConfig read_rotary(const detail::ConfigReader& read) {
  RotaryConfig rotary;
  rotary.theta = read.number("rope_theta", rotary.theta);
  const core::Value* parameters = read.map("rope_parameters");
  if (parameters == nullptr) parameters = read.map("rope_scaling");
  if (parameters == nullptr) return rotary;
  const detail::ConfigReader rope(*parameters, "rotary embeddings");
  rotary.theta = rope.number("rope_theta", rotary.theta);
  rotary.type = rope.string("rope_type", rope.string("type", "default"));
  rotary.factor = rope.number("factor", rotary.factor);
  rotary.low_freq_factor = rope.number("low_freq_factor", rotary.low_freq_factor);
  rotary.high_freq_factor = rope.number("high_freq_factor", rotary.high_freq_factor);
  rotary.original_max_positions = rope.integer("original_max_position_embeddings",
                                               read.integer("max_position_embeddings", rotary.original_max_positions));
  rope.one_of("rope_type", rotary.type, {"default", "linear", "llama3"});
  return rotary;
}

// layer_types, or for Qwen2 without it: the layers from max_window_layers on.
std::vector<bool> read_windowed_layers(const detail::ConfigReader& read, int64_t num_layers, int64_t first_windowed) {
  std::vector<bool> windowed;
  if (const core::Value* types = read.map("layer_types")) {
    for (const core::Value& type : types->as_list()) {
      windowed.push_back(read.one_of("layer_types", type.as_string(), {"full_attention", "sliding_attention"}) ==
                         "sliding_attention");
    }
    if (static_cast<int64_t>(windowed.size()) == num_layers) return windowed;
    throw UsageError(Origin{"models"}, "layer_types has ", windowed.size(),
                     " entries, but num_hidden_layers = ", num_layers, ". Give one entry a layer.");
  }
  for (int64_t layer = 0; layer < num_layers; ++layer) windowed.push_back(layer >= first_windowed);
  return windowed;
}

}  // namespace

LlamaConfig LlamaConfig::from_json(const core::Value& value) {
  const std::string type = detail::ConfigReader(value, "llama").string("model_type", "llama");
  const detail::ConfigReader read(value, type);
  read.one_of("model_type", type, {"llama", "mistral", "qwen2"});
  LlamaConfig config;
  config.vocab_size = read.integer("vocab_size", config.vocab_size);
  config.hidden_size = read.integer("hidden_size", config.hidden_size);
  config.intermediate_size = read.integer("intermediate_size", config.intermediate_size);
  config.num_hidden_layers = read.integer("num_hidden_layers", config.num_hidden_layers);
  config.num_attention_heads = read.integer("num_attention_heads", config.num_attention_heads);
  config.num_key_value_heads = read.integer("num_key_value_heads", config.num_attention_heads);
  config.head_dim = read.integer("head_dim", 0);
  config.max_position_embeddings = read.integer("max_position_embeddings", config.max_position_embeddings);
  config.rms_norm_eps = read.number("rms_norm_eps", config.rms_norm_eps);
  config.initializer_range = read.number("initializer_range", config.initializer_range);
  config.tie_word_embeddings = read.flag("tie_word_embeddings", false);
  const bool windowed = type == "mistral" || (type == "qwen2" && read.flag("use_sliding_window", false));
  if (windowed) config.sliding_window = read.integer("sliding_window", 0);
  if (config.sliding_window > 0) {
    // transformers' default of max_window_layers is 28.
    config.windowed_layers = read_windowed_layers(read, config.num_hidden_layers,
                                                  type == "qwen2" ? read.integer("max_window_layers", 28) : 0);
  }
  const bool all_biases = read.flag("attention_bias", false);
  config.qkv_bias = type == "qwen2" || all_biases;
  config.o_bias = all_biases;
  config.mlp_bias = read.flag("mlp_bias", false);
  config.rotary = read_rotary(read);
  const std::string activation = read.string("hidden_act", "silu");
  read.one_of("hidden_act", activation, {"silu", "swish"});
  read.require_divides("num_key_value_heads", config.num_key_value_heads, "num_attention_heads",
                       config.num_attention_heads);
  return config;
}

RmsNormImpl::RmsNormImpl(int64_t hidden, double eps) : torch::nn::Module("RmsNorm"), eps_(eps) {
  weight = register_parameter("weight", at::ones({hidden}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) const {
  const at::Tensor wide = x.to(at::kFloat);
  return weight * (wide * at::rsqrt(wide.pow(2).mean(-1, true) + eps_)).to(x.scalar_type());
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config, int64_t layer)
    : num_heads_(config.num_attention_heads),
      num_kv_heads_(config.num_key_value_heads),
      head_dim_(config.resolved_head_dim()),
      layer_(layer) {
  const int64_t hidden = config.hidden_size;
  auto attention = register_module("self_attn", std::make_shared<torch::nn::Module>("LlamaAttention"));
  q_ = attention->register_module("q_proj", linear(hidden, num_heads_ * head_dim_, config.qkv_bias));
  k_ = attention->register_module("k_proj", linear(hidden, num_kv_heads_ * head_dim_, config.qkv_bias));
  v_ = attention->register_module("v_proj", linear(hidden, num_kv_heads_ * head_dim_, config.qkv_bias));
  o_ = attention->register_module("o_proj", linear(num_heads_ * head_dim_, hidden, config.o_bias));
  auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>("LlamaMlp"));
  gate_ = mlp->register_module("gate_proj", linear(hidden, config.intermediate_size, config.mlp_bias));
  up_ = mlp->register_module("up_proj", linear(hidden, config.intermediate_size, config.mlp_bias));
  down_ = mlp->register_module("down_proj", linear(config.intermediate_size, hidden, config.mlp_bias));
  input_layernorm_ = register_module("input_layernorm", RmsNorm(hidden, config.rms_norm_eps));
  post_attention_layernorm_ = register_module("post_attention_layernorm", RmsNorm(hidden, config.rms_norm_eps));
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x, const RotaryAngles& angles,
                                   const detail::AttentionContext& context) {
  const int64_t batch = x.size(0), tokens = x.size(1);
  const at::Tensor normed = input_layernorm_->forward(x);
  const auto by_head = [&](const at::Tensor& y, int64_t heads) {
    return y.view({batch, tokens, heads, head_dim_}).transpose(1, 2);
  };
  const at::Tensor queries = apply_rotary(by_head(q_(normed), num_heads_), angles);
  const at::Tensor keys = apply_rotary(by_head(k_(normed), num_kv_heads_), angles);
  const at::Tensor attended = detail::attend(queries, keys, by_head(v_(normed), num_kv_heads_), context, layer_);
  const at::Tensor middle = x + o_(attended);
  const at::Tensor inner = post_attention_layernorm_->forward(middle);
  return middle + down_(at::silu(gate_(inner)) * up_(inner));
}

LlamaImpl::LlamaImpl(const LlamaConfig& config) : CausalLmModule("Llama"), config_(config) {
  auto model = register_module("model", std::make_shared<torch::nn::Module>("LlamaModel"));
  embed_tokens_ = model->register_module("embed_tokens", torch::nn::Embedding(config.vocab_size, config.hidden_size));
  layers_ = model->register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_->push_back(LlamaBlock(config, i));
  norm_ = model->register_module("norm", RmsNorm(config.hidden_size, config.rms_norm_eps));
  lm_head_ =
      register_module("lm_head", detail::LmHead(config.hidden_size, config.vocab_size,
                                                config.tie_word_embeddings ? embed_tokens_->weight : at::Tensor()));
  inverse_frequencies_ = rotary_inverse_frequencies(config.rotary, config.resolved_head_dim());
  detail::initialize_normal(*this, config.initializer_range);
}

at::Tensor LlamaImpl::forward(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) {
  const at::ScalarType type = embed_tokens_->weight.scalar_type();
  const auto context = detail::attention_context(ids, attention_mask, cache, type);
  const auto windowed = config_.sliding_window == 0
                            ? context
                            : detail::attention_context(ids, attention_mask, cache, type, config_.sliding_window);
  // Not a buffer, which files would hold: it follows the tokens' device.
  if (inverse_frequencies_.device() != ids.device()) inverse_frequencies_ = inverse_frequencies_.to(ids.device());
  const RotaryAngles angles = rotary_angles(inverse_frequencies_, context.positions, type);
  at::Tensor x = embed_tokens_(ids);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    x = layers_[static_cast<size_t>(i)]->as<LlamaBlock>()->forward(x, angles,
                                                                   config_.is_windowed(i) ? windowed : context);
  }
  return lm_head_->forward(norm_->forward(x));
}

}  // namespace hasten::models
