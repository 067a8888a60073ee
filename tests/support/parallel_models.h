// Small models for tests of model parallelism, and what one process makes of them.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/models/bert.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/llama.h"
#include "hasten/models/t5.h"

namespace hasten::testing {

// ---- Configurations. Heads are 4, the vocabulary is 97, which no number of ranks divides, and nothing is dropped.

inline models::Gpt2Config small_gpt2_config(int64_t width = 16, int64_t layers = 4) {
  models::Gpt2Config config;
  config.vocab_size = 97;
  config.n_positions = width;
  config.n_embd = width;
  config.n_layer = layers;
  config.n_head = 4;
  return config;
}

inline models::BertConfig small_bert_config(int64_t width = 16, int64_t layers = 4) {
  models::BertConfig config;
  config.vocab_size = 97;
  config.hidden_size = width;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 4;
  config.intermediate_size = 2 * width;
  config.max_position_embeddings = width;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  return config;
}

/// `layers` of the encoder, and as many of the decoder.
inline models::T5Config small_t5_config(int64_t layers = 2) {
  models::T5Config config;
  config.vocab_size = 97;
  config.d_model = 16;
  config.d_kv = 4;
  config.d_ff = 32;
  config.num_layers = layers;
  config.num_heads = 4;
  config.dropout_rate = 0;
  config.initializer_factor = 0.2;
  return config;
}

// ---- Models.

/// An encoder and a decoder of libtorch's own layers between embeddings and a head.
struct EncoderDecoderImpl : torch::nn::Module {
  EncoderDecoderImpl() {
    register_module("source", source);
    register_module("target", target);
    register_module("transformer", transformer);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& ids) {
    const auto s = source(ids).transpose(0, 1), t = target(ids.flip(1)).transpose(0, 1);
    const auto mask = torch::nn::TransformerImpl::generate_square_subsequent_mask(ids.size(1));
    return head(transformer(s, t, at::Tensor(), mask).transpose(0, 1));
  }
  torch::nn::Embedding source{96, 32}, target{96, 32};
  torch::nn::Transformer transformer{torch::nn::TransformerOptions(32, 4, 2, 2).dim_feedforward(64).dropout(0.0)};
  torch::nn::Linear head{32, 96};
};
TORCH_MODULE(EncoderDecoder);

/// A model, and its loss of tokens x and targets y, both [batch, tokens].
struct ParallelModel {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor& x, const at::Tensor& y)> loss;
  /// Names of parameters whose gradient is zero but for rounding.
  std::vector<std::string> without_gradient = {};
};

inline at::Tensor language_loss(const at::Tensor& logits, const at::Tensor& y) {
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), y.reshape(-1));
}

inline ParallelModel gpt2_model() {
  const auto config = small_gpt2_config(32);
  return {"gpt2", [=] { return std::make_shared<models::Gpt2Impl>(config); },
          [](torch::nn::Module& net, const at::Tensor& x, const at::Tensor& y) {
            return language_loss(net.as<models::Gpt2Impl>()->forward(x, {}, nullptr), y);
          }};
}

inline ParallelModel llama_model() {
  models::LlamaConfig config;
  config.vocab_size = 96;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.max_position_embeddings = 64;
  return {"llama", [=] { return std::make_shared<models::LlamaImpl>(config); },
          [](torch::nn::Module& net, const at::Tensor& x, const at::Tensor& y) {
            const auto mask = at::ones_like(x);
            mask.slice(1, 0, 3).zero_();
            return language_loss(net.as<models::LlamaImpl>()->forward(x, mask, nullptr), y);
          }};
}

inline ParallelModel bert_model() {
  auto config = small_bert_config(32);
  config.vocab_size = 100;
  config.num_labels = 3;
  return {"bert",
          [=] { return std::make_shared<models::BertForSequenceClassificationImpl>(config); },
          [](torch::nn::Module& net, const at::Tensor& x, const at::Tensor& y) {
            const auto mask = at::ones_like(x);
            mask.slice(1, 12).zero_();
            const auto logits = net.as<models::BertForSequenceClassificationImpl>()->forward(x, mask, at::Tensor());
            return torch::nn::functional::cross_entropy(logits, y.select(1, 0).remainder(3));
          },
          {"key.bias"}};
}

inline ParallelModel encoder_decoder_model() {
  return {"encoder_decoder",
          [] { return EncoderDecoder().ptr(); },
          [](torch::nn::Module& net, const at::Tensor& x, const at::Tensor& y) {
            return language_loss(net.as<EncoderDecoderImpl>()->forward(x), y);
          },
          {"in_proj_bias"}};
}

inline std::vector<ParallelModel> parallel_models() {
  return {gpt2_model(), llama_model(), bert_model(), encoder_decoder_model()};
}

/// Tokens and targets, [8, 16].
struct ParallelBatch {
  at::Tensor x, y;
};
/// Draws from a generator of its own, for ranks that are threads share the default one.
inline ParallelBatch parallel_batch() {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto draw = [&] { return at::randint(96, {8, 16}, generator, at::TensorOptions(at::kLong)); };
  const at::Tensor x = draw();
  return {x, draw()};
}

/// The losses of some steps of AdamW, and the weights afterwards.
struct ParallelRun {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

/// Autocast in bfloat16 while it exists.
struct Bf16Scope {
  explicit Bf16Scope(bool on) : on(on) { set(on); }
  ~Bf16Scope() {
    if (on) at::autocast::clear_cache();
    set(false);
  }
  void set(bool to) const {
    if (!on) return;
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, to);
  }
  bool on;
};

inline ParallelRun one_process(const ParallelModel& model, int steps, bool bf16 = false, double clip = 0) {
  const auto batch = parallel_batch();
  torch::manual_seed(0);
  const auto net = model.make();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  ParallelRun run;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Bf16Scope scope(bf16);
      loss = model.loss(*net, batch.x, batch.y);
    }
    loss.backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
    optimizer.step();
    run.losses.push_back(loss.item<double>());
  }
  for (const auto& item : net->named_parameters()) run.weights[item.key()] = item.value().detach().clone();
  return run;
}

}  // namespace hasten::testing
