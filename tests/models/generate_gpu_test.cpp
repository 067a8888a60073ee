// Language models on a GPU continue a prompt as on a CPU.
#include "hasten/models/generate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/models/gpt2.h"
#include "hasten/models/llama.h"
#include "support/device.h"

namespace hasten::models {
namespace {

using testing::kGpu;

class GenerateGpu : public testing::OnGpu {};

template <class Model>
void expect_same_tokens(Model& model, const GenerateOptions& options, const at::Tensor& mask = {}) {
  model->eval();
  const auto prompt = torch::tensor({{1, 2, 3}, {4, 5, 6}});
  GenerateOptions here = options, there = options;
  here.attention_mask = mask;
  const auto expected = generate(*model, prompt, here);
  model->to(kGpu);
  if (mask.defined()) there.attention_mask = mask.to(kGpu);
  const auto found = generate(*model, prompt.to(kGpu), there);
  model->to(c10::kCPU);

  EXPECT_TRUE(found.is_cuda());
  EXPECT_TRUE(found.cpu().equal(expected)) << found.cpu() << expected;
}

Gpt2 small_gpt2() {
  Gpt2Config config;
  config.n_layer = 2, config.n_embd = 64, config.n_head = 4, config.vocab_size = 100, config.n_positions = 64;
  torch::manual_seed(3);
  return Gpt2(config);
}

TEST_F(GenerateGpu, Gpt2ContinuesAPromptAsOnTheCpu) {
  auto model = small_gpt2();
  expect_same_tokens(model, {.max_new_tokens = 12});
  expect_same_tokens(model, {.max_new_tokens = 6}, torch::tensor({{0, 1, 1}, {1, 1, 1}}));
  expect_same_tokens(model, {.max_new_tokens = 6, .eos = {7}});
}

TEST_F(GenerateGpu, LlamaContinuesAPromptAsOnTheCpu) {
  LlamaConfig config;
  config.num_hidden_layers = 2, config.hidden_size = 64, config.intermediate_size = 96, config.vocab_size = 100;
  config.num_attention_heads = 4, config.num_key_value_heads = 2, config.max_position_embeddings = 64;
  torch::manual_seed(3);
  Llama model(config);
  expect_same_tokens(model, {.max_new_tokens = 12});
  expect_same_tokens(model, {.max_new_tokens = 6}, torch::tensor({{0, 1, 1}, {1, 1, 1}}));
}

TEST_F(GenerateGpu, TheSameSeedSamplesTheSameTokens) {
  auto model = small_gpt2();
  model->eval();
  model->to(kGpu);
  const auto prompt = torch::tensor({{1, 2, 3}}).to(kGpu);
  const GenerateOptions options{.max_new_tokens = 12, .temperature = 1.0, .seed = 5};
  const auto state = at::globalContext().defaultGenerator(kGpu).get_state();

  const auto first = generate(*model, prompt, options);
  EXPECT_TRUE(generate(*model, prompt, options).equal(first));
  EXPECT_TRUE(at::globalContext().defaultGenerator(kGpu).get_state().equal(state));
}

}  // namespace
}  // namespace hasten::models
