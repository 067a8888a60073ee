#include "hasten/models/gptj.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "hasten/models/causal_lm.h"
#include "hasten/models/generate.h"
#include "support/folder.h"

namespace hasten::models {
namespace {

constexpr const char* kConfig = R"({"model_type": "gptj", "vocab_size": 11, "n_positions": 16, "n_embd": 12,
  "n_layer": 2, "n_head": 2, "rotary_dim": 4, "activation_function": "gelu_new"})";

// Weights by a formula that Python can repeat: 0.5 sin(0.7 i + k) for number i of the k-th parameter by name.
Gptj made_gptj() {
  Gptj model(GptjConfig::from_json(core::Value::parse_json(kConfig, "config.json")));
  const torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> sorted;
  for (const auto& item : model->named_parameters()) sorted[item.key()] = item.value();
  int64_t k = 0;
  for (auto& [name, parameter] : sorted) {
    const auto i = torch::arange(parameter.numel(), at::kDouble);
    parameter.copy_((0.5 * torch::sin(0.7 * i + static_cast<double>(k++))).to(at::kFloat).view_as(parameter));
  }
  model->eval();
  return model;
}

at::Tensor prompts() {
  return torch::tensor({1, 5, 2, 7, 3, 9, 0, 4, 4, 10}, at::kLong).view({2, 5});
}

TEST(Gptj, LogitsAreThoseOfTransformers) {
  const torch::NoGradGuard no_grad;
  auto model = made_gptj();
  // transformers 4.46, GPTJForCausalLM in float32.
  const auto last = torch::tensor({-1.046363, 2.017843, -0.222063, -0.521767, 1.872432, -0.99273, -1.291857, 1.215206,
                                   -1.231826, -0.746488, 2.028703});
  const auto third = torch::tensor({-1.068333, 2.019898, -0.202227, -0.544423, 1.876126, -0.973911, -1.315096, 1.220523,
                                    -1.214108, -0.770206, 2.035618});

  const auto logits = model->forward(prompts(), {}, nullptr);

  EXPECT_TRUE(torch::allclose(logits[0][4], last.to(at::kFloat), 1e-5, 1e-5)) << logits[0][4];
  EXPECT_TRUE(torch::allclose(logits[1][2], third.to(at::kFloat), 1e-5, 1e-5)) << logits[1][2];
}

TEST(Gptj, TokensInPiecesWithACacheAreTokensAtOnceAndPaddingChangesNothing) {
  const torch::NoGradGuard no_grad;
  auto model = made_gptj();
  const auto ids = prompts(), whole = model->forward(ids, {}, nullptr);
  KvCache cache(model->num_layers());

  const auto first = model->forward(ids.slice(1, 0, 2), {}, &cache);
  const auto second = model->forward(ids.slice(1, 2), {}, &cache);
  const auto mask = torch::constant_pad_nd(torch::ones_like(ids), {3, 0}, 0);
  const auto padded = model->forward(torch::constant_pad_nd(ids, {3, 0}, 0), mask, nullptr).slice(1, 3);

  EXPECT_TRUE(torch::allclose(torch::cat({first, second}, 1), whole, 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(padded, whole, 1e-4, 1e-5));
  EXPECT_THROW(model->forward(torch::zeros({1, 17}, at::kLong), {}, nullptr), UsageError);
}

using GptjFolder = hasten::testing::InFolder;

TEST_F(GptjFolder, AFolderOfTransformersIsLoadedWithOldMasksLeftOut) {
  auto model = made_gptj();
  checkpoint::StateDict state = checkpoint::state_dict(*model);
  state.set("transformer.h.0.attn.bias", torch::ones({1, 1, 16, 16}, at::kBool));
  state.set("transformer.h.0.attn.masked_bias", torch::tensor(-1e9));
  checkpoint::save_model(state, folder_);
  write("config.json", kConfig);

  const auto loaded = CausalLm::from_folder(folder_);

  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::allclose(loaded(prompts()), model->forward(prompts(), {}, nullptr), 1e-5, 1e-6));
  EXPECT_EQ(generate(loaded.module(), prompts(), {.max_new_tokens = 3}).size(1), 8);
}

TEST(Gptj, SettingsThatAreNotThereAreRefusedByName) {
  const auto refused = [](const char* json, const char* words) {
    EXPECT_THAT([&] { GptjConfig::from_json(core::Value::parse_json(json, "config.json")); },
                ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr(words)));
  };

  refused(R"({"rotary_dim": null})", "rotary_dim = 0 is not supported; expected an even number from 2");
  refused(R"({"rotary_dim": 6, "n_embd": 8, "n_head": 2})", "to n_embd / n_head = 4");
  refused(R"({"activation_function": "relu"})", "activation_function = 'relu'");
}

}  // namespace
}  // namespace hasten::models
