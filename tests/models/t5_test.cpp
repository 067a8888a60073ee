// T5, and BERT's heads for pretraining, beside transformers.
#include "hasten/models/t5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "hasten/checkpoint/state_dict.h"
#include "hasten/core/error.h"
#include "hasten/models/bert.h"

namespace hasten::models {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Weights by a formula that Python can repeat: 0.5 sin(0.7 i + k) for number i of the k-th parameter by name. Of tied
// names transformers lists the one outside of `tied`.
void fill_by_formula(torch::nn::Module& model, const std::vector<std::string>& tied) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> sorted;
  for (const auto& item : model.named_parameters()) {
    const bool is_tied = std::any_of(
        tied.begin(), tied.end(), [&](const std::string& part) { return item.key().find(part) != std::string::npos; });
    if (!is_tied) sorted[item.key()] = item.value();
  }
  int64_t k = 0;
  for (auto& [name, parameter] : sorted) {
    const auto i = torch::arange(parameter.numel(), at::kDouble);
    parameter.copy_((0.5 * torch::sin(0.7 * i + static_cast<double>(k++))).to(at::kFloat).view_as(parameter));
  }
  model.eval();
}

constexpr const char* kT5Config = R"({"model_type": "t5", "vocab_size": 11, "d_model": 12, "d_kv": 4, "d_ff": 10,
  "num_layers": 2, "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
  "feed_forward_proj": "PROJECTION"})";

T5 made_t5(const std::string& projection) {
  std::string words = kT5Config;
  words.replace(words.find("PROJECTION"), 10, projection);
  T5 model(T5Config::from_json(core::Value::parse_json(words, "config.json")));
  fill_by_formula(*model, {"embed_tokens", "lm_head"});
  return model;
}

at::Tensor ids_of(std::vector<int64_t> values, int64_t rows) {
  return torch::tensor(values, at::kLong).view({rows, -1});
}

void expect_logits(const std::string& projection, const std::vector<double>& last, const std::vector<double>& third) {
  const torch::NoGradGuard no_grad;
  auto model = made_t5(projection);
  const auto ids = ids_of({1, 5, 2, 7, 3, 9, 4, 8, 6, 4, 4, 10, 1, 2, 6, 3, 0, 0}, 2);
  auto mask = at::ones_like(ids);
  mask[1].slice(0, 7).zero_();

  const auto logits = model->forward(ids, mask, ids_of({0, 3, 5, 7, 0, 9, 1, 2}, 2));

  EXPECT_TRUE(torch::allclose(logits[0][3], torch::tensor(last).to(at::kFloat), 1e-5, 2e-6)) << logits[0][3];
  EXPECT_TRUE(torch::allclose(logits[1][2], torch::tensor(third).to(at::kFloat), 1e-5, 2e-6)) << logits[1][2];
}

// transformers 5.24, T5ForConditionalGeneration in float32.
TEST(T5, LogitsAreThoseOfTransformers) {
  expect_logits("relu",
                {-0.089412, 0.094397, -0.008626, -0.085438, 0.09736, -0.015678, -0.081077, 0.099883, -0.022659,
                 -0.07635, 0.101954},
                {-0.060394, 0.050199, 0.008259, -0.058776, 0.052785, 0.003955, -0.056892, 0.055132, -0.000367,
                 -0.054751, 0.05723});
  expect_logits(
      "gated-gelu",
      {0.013331, -0.077916, 0.067591, 0.007717, -0.075606, 0.070806, 0.002069, -0.072955, 0.0737, -0.003588, -0.069973},
      {0.019921, -0.098244, 0.082113, 0.012963, -0.095576, 0.0863, 0.005947, -0.092476, 0.090097, -0.001097,
       -0.088958});
}

TEST(T5, EmbeddingsAndHeadAreOneParameter) {
  const auto model = made_t5("relu");
  const auto state = checkpoint::state_dict(*model);

  for (const char* name : {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"})
    EXPECT_EQ(state.at(name).data_ptr(), state.at("shared.weight").data_ptr()) << name;
  EXPECT_TRUE(state.contains("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"));
  EXPECT_FALSE(state.contains("decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"));
}

TEST(T5, RefusesWhatItLacks) {
  EXPECT_THAT([] { made_t5("gated-silu"); }, ThrowsMessage<UsageError>(HasSubstr("did you mean 'gated-gelu'")));
  auto model = made_t5("relu");
  EXPECT_THAT(
      [&] {
        model->forward(at::zeros({2, 3}), {}, ids_of({0}, 1));
      },
      ThrowsMessage<UsageError>(HasSubstr("ids of T5's encoder are Float of shape [2, 3]")));
}

// transformers 5.24, BertForPreTraining in float32.
TEST(BertForPreTraining, ScoresAreThoseOfTransformers) {
  const torch::NoGradGuard no_grad;
  BertConfig config;
  config.vocab_size = 11;
  config.hidden_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.intermediate_size = 10;
  config.max_position_embeddings = 16;
  BertForPreTraining model(config);
  fill_by_formula(*model, {"predictions.decoder"});
  const auto ids = ids_of({1, 5, 2, 7, 3, 4, 4, 10, 1, 0}, 2);
  const auto mask = ids_of({1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, 2);

  const auto [words, order] = model->forward(ids, mask, ids_of({0, 0, 0, 1, 1, 0, 0, 1, 1, 1}, 2));

  const auto third = torch::tensor({0.212919, -0.540536, 1.515651, -0.485804, -1.340356, 0.826438, -0.797069, -0.903818,
                                    1.630192, -0.045541, -0.339673});
  const auto second = torch::tensor({0.212572, -0.540455, 1.515914, -0.486158, -1.340252, 0.826683, -0.797428, -0.90369,
                                     1.630419, -0.045904, -0.339523});
  EXPECT_TRUE(torch::allclose(words[0][2], third.to(at::kFloat), 1e-5, 1e-5)) << words[0][2];
  EXPECT_TRUE(torch::allclose(words[1][1], second.to(at::kFloat), 1e-5, 1e-5)) << words[1][1];
  const auto orders = torch::tensor({0.13585, 0.265299, 0.136275, 0.265222}).view({2, 2});
  EXPECT_TRUE(torch::allclose(order, orders.to(at::kFloat), 1e-5, 1e-5)) << order;
}

}  // namespace
}  // namespace hasten::models
