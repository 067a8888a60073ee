// GPT-2, the Llama family, the cache and generation, beside their definitions.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/models/bert.h"
#include "hasten/models/generate.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/kv_cache.h"
#include "hasten/models/llama.h"
#include "hasten/models/rotary.h"
#include "support/folder.h"

namespace hasten::models {
namespace {

Gpt2 tiny_gpt2() {
  Gpt2Config config;
  config.vocab_size = 31;
  config.n_positions = 40;
  config.n_embd = 16;
  config.n_layer = 2;
  config.n_head = 4;
  config.initializer_range = 0.5;
  torch::manual_seed(5);
  return Gpt2(config);
}

Llama tiny_llama(int64_t sliding_window = 0) {
  LlamaConfig config;
  config.vocab_size = 31;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.sliding_window = sliding_window;
  config.initializer_range = 0.5;
  torch::manual_seed(5);
  return Llama(config);
}

at::Tensor tokens(int64_t batch, int64_t count) {
  return torch::randint(31, {batch, count}, at::kLong);
}

template <class Model>
void expect_the_cache_changes_nothing(Model model) {
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = tokens(2, 9);
  const at::Tensor whole = model->forward(ids, {}, nullptr);
  KvCache cache(model->num_layers());

  const at::Tensor first = model->forward(ids.slice(1, 0, 5), {}, &cache);
  const at::Tensor second = model->forward(ids.slice(1, 5, 8), {}, &cache);
  const at::Tensor third = model->forward(ids.slice(1, 8), {}, &cache);

  EXPECT_TRUE(torch::allclose(torch::cat({first, second, third}, 1), whole, 1e-4, 1e-5));
  EXPECT_EQ(cache.num_tokens(), 9);
}

BertConfig tiny_bert() {
  return BertConfig::from_json(core::Value::parse_json(
      R"({"model_type": "bert", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 10, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.5,
    "id2label": {"0": "a", "1": "b", "2": "c"}})",
      "config.json"));
}

TEST(Bert, HasTheNamesOfTransformersAndScoresForEachLabel) {
  torch::manual_seed(1);
  BertForSequenceClassification model(tiny_bert());
  const auto ids = torch::randint(1, 20, {3, 7}, at::kLong);

  EXPECT_EQ(model->forward(ids, torch::ones_like(ids), torch::zeros_like(ids)).sizes(), (std::vector<int64_t>{3, 3}));
  const auto names = model->named_parameters();
  for (const char* name :
       {"bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.1.attention.self.query.weight", "bert.encoder.layer.0.attention.output.dense.bias",
        "bert.encoder.layer.0.intermediate.dense.weight", "bert.encoder.layer.1.output.LayerNorm.weight",
        "bert.pooler.dense.bias", "classifier.weight"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_EQ(names.size(), 5U + 2 * 16 + 2 + 2);
}

TEST(Bert, PaddingChangesNothingAndTypesAndOrderDo) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  Bert model(tiny_bert());
  const auto ids = torch::randint(1, 20, {2, 6}, at::kLong), longer = torch::constant_pad_nd(ids, {0, 3}, 7);
  const auto mask = torch::constant_pad_nd(torch::ones_like(ids), {0, 3}, 0);

  const auto plain = model->forward(ids).second;

  EXPECT_TRUE(torch::allclose(model->forward(longer, mask).second, plain, 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(model->forward(longer).second, plain, 1e-2, 1e-2));
  EXPECT_FALSE(torch::allclose(model->forward(ids, {}, torch::ones_like(ids)).second, plain, 1e-2, 1e-2));
  EXPECT_FALSE(torch::allclose(model->forward(ids.flip(1)).second, plain, 1e-2, 1e-2));
  EXPECT_THROW(model->forward(torch::ones({1, 11}, at::kLong)), UsageError);
  EXPECT_THROW(BertConfig::from_json(core::Value::parse_json(R"({"hidden_act": "relu"})", "x")), UsageError);
}

TEST(Models, TokensInPiecesWithACacheAreTokensAtOnce) {
  expect_the_cache_changes_nothing(tiny_gpt2());
  expect_the_cache_changes_nothing(tiny_llama());
  expect_the_cache_changes_nothing(tiny_llama(3));
}

TEST(Models, LeftPaddingChangesNothingForRealTokens) {
  const torch::NoGradGuard no_grad;
  auto model = tiny_llama();
  const at::Tensor ids = tokens(1, 6), padded = torch::cat({torch::zeros({1, 3}, at::kLong), ids}, 1);
  const at::Tensor mask = torch::cat({torch::zeros({1, 3}, at::kLong), torch::ones({1, 6}, at::kLong)}, 1);

  const at::Tensor logits = model->forward(padded, mask, nullptr).slice(1, 3);

  EXPECT_TRUE(torch::allclose(logits, model->forward(ids, {}, nullptr), 1e-4, 1e-5));
}

TEST(Models, ASlidingWindowHidesOlderTokens) {
  const torch::NoGradGuard no_grad;
  auto model = tiny_llama(2);
  at::Tensor one = tokens(1, 8), other = one.clone();
  other[0][0] = (other[0][0] + 1) % 31;

  // Two layers of window 2 reach two tokens back.
  const at::Tensor difference =
      (model->forward(one, {}, nullptr) - model->forward(other, {}, nullptr)).abs().amax(-1)[0];

  EXPECT_GT(difference[1].item<float>(), 0);
  EXPECT_EQ(difference.slice(0, 3).max().item<float>(), 0);
}

TEST(Models, GradientsReachTiedEmbeddingsOnce) {
  auto model = tiny_gpt2();

  model->forward(tokens(2, 5), {}, nullptr).sum().backward();

  const auto parameters = model->named_parameters();
  EXPECT_TRUE(parameters["transformer.wte.weight"].is_same(parameters["lm_head.weight"]));
  EXPECT_TRUE(parameters["transformer.wte.weight"].grad().defined());
}

TEST(Models, BadInputIsNamed) {
  auto gpt2 = tiny_gpt2();

  EXPECT_NE(testing::words_of<UsageError>([&] {
              gpt2->forward(torch::ones({4}, at::kLong), {}, nullptr);
            }).find("[batch, tokens]"),
            std::string::npos);
  EXPECT_NE(testing::words_of<UsageError>([&] {
              gpt2->forward(tokens(1, 41), {}, nullptr);
            }).find("41 tokens are more than the model's 40"),
            std::string::npos);
  EXPECT_NE(testing::words_of<UsageError>([] {
              make_causal_lm(core::Value::map({{"model_type", "lama"}}));
            }).find("did you mean 'llama'?"),
            std::string::npos);
  const auto yarn =
      core::Value::map({{"model_type", "llama"}, {"rope_scaling", core::Value::map({{"rope_type", "yarn"}})}});
  EXPECT_NE(testing::words_of<UsageError>([&] { make_causal_lm(yarn); }).find("'yarn'"), std::string::npos);
  EXPECT_THROW(LlamaConfig::from_json(core::Value::map({{"model_type", "llama"}, {"hidden_act", "gelu"}})), UsageError);
}

TEST(KvCache, GrowsToItsLimitAndKeepsWhatItHolds) {
  KvCache cache(1, 100);
  const at::Tensor first = torch::randn({2, 3, 60, 4}), second = torch::randn({2, 3, 30, 4});
  cache.append(0, first, first);

  const auto [keys, values] = cache.append(0, second, second);

  EXPECT_TRUE(keys.equal(torch::cat({first, second}, 2)));
  EXPECT_TRUE(values.equal(keys));
  EXPECT_NE(testing::words_of<UsageError>([&] {
              cache.append(0, second, second);
            }).find("120 tokens, more than max_tokens = 100"),
            std::string::npos);
  EXPECT_THROW(cache.append(0, torch::randn({1, 3, 2, 4}), torch::randn({1, 3, 2, 4})), UsageError);
  cache.truncate(60);
  EXPECT_EQ(cache.num_tokens(), 60);
}

TEST(Rotary, Llama3KeepsShortWavesAndStretchesLongOnes) {
  RotaryConfig config{.theta = 10000,
                      .type = "llama3",
                      .factor = 8,
                      .low_freq_factor = 1,
                      .high_freq_factor = 4,
                      .original_max_positions = 64};
  const at::Tensor plain = rotary_inverse_frequencies({.theta = 10000}, 16),
                   scaled = rotary_inverse_frequencies(config, 16);

  // Wavelengths: 2 pi / inv. Below 64 / 4 = 16 nothing changes, above 64 all is divided by 8.
  EXPECT_EQ(scaled[0].item<float>(), plain[0].item<float>());
  EXPECT_FLOAT_EQ(scaled[7].item<float>(), plain[7].item<float>() / 8);
  EXPECT_THROW(rotary_inverse_frequencies({.type = "yarn"}, 16), UsageError);
}

TEST(Generate, SamplesOnlyWhatTopKAndTopPLeave) {
  const at::Tensor logits = torch::tensor({{0.5, 0.25, 0.15, 0.1}}).log();

  const at::Tensor top_k = sampling_probabilities(logits, {.temperature = 1, .top_k = 2});
  const at::Tensor top_p = sampling_probabilities(logits, {.temperature = 1, .top_p = 0.7});

  EXPECT_TRUE(torch::allclose(top_k, torch::tensor({{2.0 / 3, 1.0 / 3, 0.0, 0.0}}).to(at::kFloat), 1e-4, 1e-6))
      << top_k;
  EXPECT_TRUE(torch::allclose(top_p, torch::tensor({{2.0 / 3, 1.0 / 3, 0.0, 0.0}}).to(at::kFloat), 1e-4, 1e-6))
      << top_p;
  EXPECT_TRUE(sampling_probabilities(logits, {.temperature = 0.5, .top_k = 1})[0][0].item<float>() == 1);
}

TEST(Generate, ASeedRepeatsAndEndsAreKept) {
  auto model = tiny_llama();
  const at::Tensor prompt = tokens(2, 3);
  const GenerateOptions sampled{.max_new_tokens = 12, .temperature = 1.5, .seed = 9};

  const at::Tensor one = generate(*model, prompt, sampled), other = generate(*model, prompt, sampled);
  const at::Tensor greedy = generate(*model, prompt, {.max_new_tokens = 6});
  const int64_t end = greedy[0][4].item<int64_t>();
  const at::Tensor ended = generate(*model, prompt, {.max_new_tokens = 6, .eos = {end}, .pad = 30});
  int64_t calls = 0;
  generate(*model, prompt, {.max_new_tokens = 6, .on_token = [&](const at::Tensor&) { return ++calls < 2; }});

  EXPECT_TRUE(one.equal(other));
  EXPECT_TRUE(one.slice(1, 0, 3).equal(prompt));
  EXPECT_EQ(ended[0][4].item<int64_t>(), end);
  const bool goes_on = ended.size(1) > 5;  // until the second row ends
  EXPECT_EQ(goes_on ? ended[0][5].item<int64_t>() : 30, 30);
  EXPECT_EQ(calls, 2);
  EXPECT_NE(testing::words_of<UsageError>([&] {
              generate(*model, prompt, {.temperature = -1, .top_p = 2});
            }).find("top_p = 2"),
            std::string::npos);
  EXPECT_NE(
      testing::words_of<UsageError>([&] { generate(*model, prompt, {.max_new_tokens = 100}); }).find("3 + 100 = 103"),
      std::string::npos);
}

}  // namespace
}  // namespace hasten::models
