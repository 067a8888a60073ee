// Recompute through the front door: the option, FSDP's setting, and regions beside data-parallel and sharded
// parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <tuple>

#include "hasten/accelerator.h"
#include "hasten/parallel/recompute/recompute.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    up = register_module("up", torch::nn::Linear(8, 16));
    down = register_module("down", torch::nn::Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + torch::dropout(down(torch::gelu(up(norm(x)))), 0.1, is_training());
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(Layer());
    head = register_module("head", torch::nn::Linear(8, 2));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

std::vector<at::Tensor> train(const Accelerator& accelerator) {
  torch::manual_seed(11);
  Net net;
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(100 * step + accelerator.rank());
    const auto x = torch::randn({6, 8}), y = torch::randn({6, 2});
    optimizer.zero_grad();
    accelerator.backward(torch::mse_loss(model(x), y));
    optimizer.step();
  }
  std::vector<at::Tensor> values;
  for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
  return values;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << "parameter " << i;
}

// One rank at a time draws random numbers: ranks of a test are threads that share libtorch's generator.
void expect_same_numbers(const std::function<AcceleratorOptions()>& options) {
  run_ranks(1, [&](auto& process) {
    auto with = options();
    const auto expected = train(Accelerator(process, with));
    with.recompute.enabled = true;
    const auto before = parallel::recompute_counts();
    expect_equal(train(Accelerator(process, with)), expected);
    const auto after = parallel::recompute_counts();
    EXPECT_GE(after.dropped - before.dropped, 4 * 3 * 4) << "steps, layers, tensors";
    EXPECT_GT(after.replayed, before.replayed);
  });
}

TEST(RecomputeAccelerator, GivesTheNumbersOfThePlainLoop) {
  expect_same_numbers([] { return AcceleratorOptions{.tune_allocator = false}; });
}

TEST(RecomputeAccelerator, GivesTheNumbersOfMixedPrecision) {
  expect_same_numbers([] { return AcceleratorOptions{.mixed_precision = Precision::kBf16, .tune_allocator = false}; });
}

TEST(RecomputeAccelerator, GivesTheNumbersOfShardedParameters) {
  expect_same_numbers([] {
    AcceleratorOptions options{.tune_allocator = false};
    options.shard = {.stage = ShardStage::kParameters, .wrap = {.unit_bytes = 400}};
    return options;
  });
}

TEST(RecomputeAccelerator, RanksDropTheirOwnActivations) {
  run_ranks(2, [](auto& process) {
    for (const auto stage : {ShardStage::kNone, ShardStage::kParameters}) {
      const auto run = [&](bool enabled) {
        AcceleratorOptions options{.tune_allocator = false};
        options.shard = {.stage = stage, .wrap = {.unit_bytes = 400}};
        options.recompute.enabled = enabled;
        const Accelerator accelerator(process, options);
        torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::GELU(), torch::nn::Linear(16, 16),
                                  torch::nn::Tanh(), torch::nn::Linear(16, 2));
        {
          const torch::NoGradGuard no_grad;
          int64_t i = 0;
          for (auto& parameter : net->parameters())
            parameter.copy_(
                torch::arange(parameter.numel()).remainder(7 + i++).sub(3).mul(0.05).view(parameter.sizes()));
        }
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        for (int step = 0; step < 3; ++step) {
          const auto x = torch::arange(48).add(step + 5 * accelerator.rank()).remainder(11).mul(0.1).view({6, 8});
          optimizer.zero_grad();
          accelerator.backward(model(x).pow(2).mean());
          optimizer.step();
        }
        std::vector<at::Tensor> values;
        for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
        process.wait_for_everyone();
        return values;
      };
      const auto expected = run(false);
      expect_equal(run(true), expected);
    }
  });
}

TEST(RecomputeAccelerator, FsdpsActivationCheckpointingTurnsItOnForItsLayers) {
  run_ranks(1, [](auto& process) {
    plan::FsdpPlugin fsdp;
    fsdp.activation_checkpointing = true;
    fsdp.auto_wrap_policy = "transformer_based_wrap";
    fsdp.transformer_cls_names_to_wrap = std::vector<std::string>{"Layer"};
    AcceleratorOptions options{.tune_allocator = false};
    options.fsdp = fsdp;
    const auto before = parallel::recompute_counts();
    train(Accelerator(process, options));
    EXPECT_GE(parallel::recompute_counts().dropped - before.dropped, 4 * 3 * 4);
  });
}

TEST(RecomputeAccelerator, AModuleThatIsNotThereIsNamed) {
  run_ranks(1, [](auto& process) {
    AcceleratorOptions options{.tune_allocator = false};
    options.recompute = {.enabled = true, .modules = {"Lajer"}};
    const Accelerator accelerator(process, options);
    Net net;
    try {
      std::ignore = accelerator.prepare(net);
      FAIL() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'Lajer'"));
    }
  });
}

}  // namespace
}  // namespace hasten
