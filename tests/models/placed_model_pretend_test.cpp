// A language model over several pretend GPUs and the host: logits and cached steps are those of the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/models/llama.h"
#include "hasten/offload/load/dispatch.h"
#include "support/device.h"

namespace hasten::models {
namespace {

Llama small_llama() {
  LlamaConfig config;
  config.num_hidden_layers = 3, config.hidden_size = 64, config.intermediate_size = 96, config.vocab_size = 100;
  config.num_attention_heads = 4, config.num_key_value_heads = 2, config.max_position_embeddings = 64;
  torch::manual_seed(3);
  return Llama(config);
}

TEST(PlacedModel, LogitsAndCachedStepsAreThoseOfTheCpu) {
  testing::pretend::counts()->slow_ms = 0;
  const at::NoGradGuard no_grad;
  auto net = small_llama();
  net->eval();
  const auto prompt = torch::tensor({{1, 2, 3}, {4, 5, 6}}), next = torch::tensor({{7}, {8}});
  const auto mask = torch::tensor({{0, 1, 1}, {1, 1, 1}}), longer = torch::tensor({{0, 1, 1, 1}, {1, 1, 1, 1}});
  KvCache cache(net->num_layers()), placed_cache(net->num_layers());
  const auto wanted = net->forward(prompt, mask, &cache), wanted_next = net->forward(next, longer, &cache);
  std::string layers;
  for (const auto& item : net->named_modules("", false)) {
    if (item.key().ends_with("layers")) layers = item.key();
  }
  offload::DeviceMap map{{"", 0}, {layers + ".1", 1}, {layers + ".2", "cpu"}};
  const auto model = offload::dispatch_model(net, map);

  const auto found = model(prompt, mask, &placed_cache), found_next = model(next, longer, &placed_cache);

  testing::expect_near({found, found_next}, {wanted, wanted_next}, 1e-4);
  EXPECT_GT(model.stream_counts().reads, 0);
  testing::pretend::counts()->slow_ms = 20;
}

}  // namespace
}  // namespace hasten::models
