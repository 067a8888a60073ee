// Models that are built empty, get their memory in prepare, and stream their weights for inference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/parallel/shard/build.h"
#include "hasten/parallel/shard/inference.h"
#include "hasten/parallel/shard/sharding.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

at::Tensor built_loss(testing::Mlp net, const Accelerator& accelerator, int step) {
  const auto problem = testing::problem_for("mlp", 50 + step);
  const auto rows = [&](const at::Tensor& all) {
    return testing::here(all.chunk(accelerator.world_size())[accelerator.rank()]);
  };
  return torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets));
}

using ZeroInference = testing::InFolder;

TEST_F(ZeroInference, weights_are_streamed_from_files_as_the_configuration_says) {
  const auto config = [&](const std::string& more, int stage = 3) {
    auto value = core::Value::parse_json(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {}})");
    value["zero_optimization"] = core::Value::parse_json(more);
    value["zero_optimization"]["stage"] = stage;
    return plan::DeepSpeedConfig(value);
  };
  testing::Mlp net;
  testing::initialise(*net, 5);
  const auto problem = testing::problem_for("mlp", 1);
  const at::NoGradGuard no_grad;
  const auto wanted = net->forward(problem.inputs);
  const auto on_cpu = parallel::zero_inference(net, config(R"({"offload_param": {"device": "cpu"}})"));
  EXPECT_TRUE(at::equal(on_cpu(problem.inputs), wanted));
  const auto nvme = config(R"({"offload_param": {"device": "nvme", "nvme_path": ")" + path("weights") + R"("}})");
  const auto streamed = parallel::zero_inference(net, nvme);
  EXPECT_TRUE(at::equal(streamed(problem.inputs), wanted));
  EXPECT_TRUE(offload::is_offloaded(*net));
  EXPECT_EQ(
      parallel::inference_settings(
          config(R"({"stage3_max_live_parameters": 1000, "offload_param": {"device": "nvme", "nvme_path": "x"}})"))
          .max_live_bytes,
      4000);
  EXPECT_THROW(parallel::inference_settings(config("{}", 2)), UsageError);
}

AcceleratorOptions with_stage(ShardStage stage) {
  AcceleratorOptions options{.tune_allocator = false};
  options.shard = {.stage = stage, .wrap = {.unit_bytes = 400}};
  return options;
}

std::vector<at::Tensor> parameter_values(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

TEST(ShardFrontDoor, BuildGivesParametersMemoryInPrepareAlone) {
  run_ranks(2, [](auto& process) {
    auto options = with_stage(ShardStage::kParameters);
    options.shard.init = [](torch::nn::Module& net) { testing::initialise(net, 5); };
    options.shard.ignored = {"first.bias"};
    const auto train = [](const Accelerator& accelerator, testing::Mlp net) {
      torch::optim::AdamW adam(net->parameters(), 0.01);
      auto [model, optimizer] = accelerator.prepare(net, adam);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        accelerator.backward(built_loss(net, accelerator, step));
        optimizer.step();
      }
      auto values = parameter_values(*net);
      accelerator.wait_for_everyone();
      return values;
    };
    const Accelerator accelerator(process, options);
    auto net = accelerator.build([] { return testing::Mlp(); });
    EXPECT_TRUE(net->parameters()[0].is_meta());
    const auto built = train(accelerator, net);
    testing::Mlp plain;
    testing::initialise(*plain, 5);
    const auto wanted = train(Accelerator(process, with_stage(ShardStage::kParameters)), plain);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(testing::same_values(built[i], wanted[i])) << i;
  });
}

TEST(ShardFrontDoor, ABuiltModelHasTheConstructorsValuesOfRankZeroOnAllRanks) {
  run_ranks(2, [](auto& process) {
    const Accelerator accelerator(process, with_stage(ShardStage::kGradients));
    auto net = accelerator.build([] { return testing::Mlp(); });
    auto model = accelerator.prepare(net);
    for (const auto& parameter : net->parameters()) {
      EXPECT_GT(parameter.abs().sum().template item<float>(), 0);
      const auto all = process.group().all_gather(parameter.detach());
      EXPECT_TRUE(at::equal(all[0], all[1]));
    }
    accelerator.wait_for_everyone();
    // Without sharding, and for a model that something else has built empty: as usual.
    const Accelerator plain(process, with_stage(ShardStage::kNone));
    EXPECT_FALSE(plain.build([] { return testing::Mlp(); })->parameters()[0].is_meta());
    auto empty = offload::empty_weights([] { return testing::Mlp(); });
    auto handle = plain.prepare(empty);
    EXPECT_FALSE(empty->parameters()[0].is_meta());
    plain.wait_for_everyone();
  });
}

}  // namespace
}  // namespace hasten
