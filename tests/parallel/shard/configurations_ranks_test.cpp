// Settings of FSDP and DeepSpeed in effect: what ranks must have alike, gradients that are not finite, dtypes, and one
// process whose state rests in files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/parallel/shard/sharding.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

core::Value configuration(int stage, const std::string& more = "{}") {
  auto config = core::Value::parse_json(more);
  config["train_batch_size"] = 8;
  config["zero_optimization"]["stage"] = stage;
  return config;
}

AcceleratorOptions with_configuration(core::Value config) {
  return {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = std::move(config)}};
}

at::Tensor rows_loss(testing::Mlp net, const Accelerator& accelerator, int step) {
  const auto problem = testing::problem_for("mlp", 50 + step);
  const auto rows = [&](const at::Tensor& all) {
    return testing::here(all.chunk(accelerator.world_size())[accelerator.rank()]);
  };
  return torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets));
}

std::vector<at::Tensor> configured_values(const torch::nn::Module& net) {
  std::vector<at::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

// Three steps of AdamW; the loss of the second is multiplied by `factor` on the last rank. Returns the parameters
// before and behind that step, and at the end.
struct ConfiguredRun {
  std::vector<at::Tensor> before, behind, last;
  bool was_skipped = false;
};
ConfiguredRun train_configured(const Accelerator& accelerator, double factor = 1) {
  testing::Mlp net;
  testing::initialise(*net, 5);
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  ConfiguredRun trained;
  for (int step = 0; step < 3; ++step) {
    if (step == 1) trained.before = configured_values(*net);
    optimizer.zero_grad();
    const bool last = accelerator.rank() == accelerator.world_size() - 1;
    accelerator.backward(rows_loss(net, accelerator, step) * (step == 1 && last ? factor : 1.0));
    optimizer.step();
    if (step != 1) continue;
    trained.behind = configured_values(*net);
    trained.was_skipped = optimizer.step_was_skipped();
  }
  trained.last = configured_values(*net);
  accelerator.wait_for_everyone();
  return trained;
}

bool have_equal_values(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return testing::same_values(a, b);
}

TEST(ShardConfigurations, RanksWithOtherOnesAreNamedWithBothValues) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    const Accelerator accelerator(
        process, with_configuration(
                     configuration(2, text("{\"gradient_clipping\": ", process.rank() == 0 ? "0.5" : "0.25", "}"))));
    train_configured(accelerator);
  });
  for (const auto& each : words) {
    EXPECT_THAT(each, AllOf(HasSubstr("DeepSpeed"), HasSubstr("rank 0 'gradient_clipping 0.5'"),
                            HasSubstr("rank 1 'gradient_clipping 0.25'")));
  }
  const auto versions = run_ranks_collecting(2, [](auto& process) {
    train_configured(
        Accelerator(process, {.tune_allocator = false, .fsdp = FsdpPlugin{.fsdp_version = 1 + process.rank()}}));
  });
  for (const auto& each : versions) {
    EXPECT_THAT(each, AllOf(HasSubstr("FSDP"), HasSubstr("'fsdp_version 1'"), HasSubstr("'fsdp_version 2'")));
  }
}

TEST(ShardConfigurations, AStepWhoseGradientsAreNotFiniteIsSkippedOnAllRanks) {
  run_ranks(2, [](auto& process) {
    const double infinite = std::numeric_limits<double>::infinity();
    for (const int stage : {0, 1, 2, 3}) {
      const auto checked = train_configured(
          Accelerator(process, with_configuration(configuration(stage, R"({"bf16": {"enabled": true}})"))), infinite);
      EXPECT_TRUE(checked.was_skipped) << stage;
      EXPECT_TRUE(have_equal_values(checked.before, checked.behind)) << stage;
      EXPECT_FALSE(have_equal_values(checked.behind, checked.last)) << stage;
      for (const auto& value : checked.last) EXPECT_TRUE(value.isfinite().all().template item<bool>()) << stage;

      const auto unchecked = train_configured(
          Accelerator(process, with_configuration(configuration(
                                   stage, R"({"bf16": {"enabled": true, "check_grad_overflow": false}})"))),
          infinite);
      EXPECT_FALSE(unchecked.was_skipped) << stage;
      EXPECT_FALSE(unchecked.behind.front().isfinite().all().template item<bool>()) << stage;
    }
  });
}

TEST(ShardConfigurations, RanksWithoutDataAnswerTheCheckOfGradients) {
  run_ranks(2, [](auto& process) {
    const auto run = [&](const std::string& checks) {
      const Accelerator accelerator(
          process, with_configuration(
                       configuration(2, R"({"bf16": {"enabled": true, "check_grad_overflow": )" + checks + "}}")));
      testing::Mlp net;
      testing::initialise(*net, 5);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.join_uneven_inputs(model, [&, &optimizer = optimizer] {
        for (int step = 0; step < 4 - 2 * accelerator.rank(); ++step) {
          optimizer.zero_grad();
          accelerator.backward(rows_loss(net, accelerator, step));
          optimizer.step();
        }
      });
      auto values = configured_values(*net);
      accelerator.wait_for_everyone();
      return values;
    };
    EXPECT_TRUE(have_equal_values(run("true"), run("false")));
  });
}

TEST(ShardConfigurations, DtypesReachTheOptions) {
  run_ranks(2, [](auto& process) {
    // The long name of bf16.
    const Accelerator low(process, with_configuration(configuration(2, R"({"bfloat16": {"enabled": true}})")));
    EXPECT_EQ(low.mixed_precision(), Precision::kBf16);
    EXPECT_EQ(low.options().shard.param_dtype, "bfloat16");
    const Accelerator half(process,
                           with_configuration(configuration(2, R"({"fp16": {"enabled": true, "auto_cast": true}})")));
    EXPECT_TRUE(half.options().precision.cast_inputs);
    const Accelerator bare(process, with_configuration(configuration(2, R"({"fp16": {"enabled": true}})")));
    EXPECT_FALSE(bare.options().precision.cast_inputs);

    const auto fsdp = [&](const std::string& policy) {
      return Accelerator(process, {.tune_allocator = false,
                                   .fsdp = FsdpPlugin{.mixed_precision_policy = core::Value::parse_json(policy)}});
    };
    const Accelerator rounded = fsdp(R"({"reduce_dtype": "bfloat16"})"), plain = fsdp(R"({"reduce_dtype": "float32"})");
    EXPECT_EQ(rounded.options().ddp.communication_dtype, at::kBFloat16);
    EXPECT_FALSE(plain.options().ddp.communication_dtype.has_value());
    const auto a = train_configured(rounded), b = train_configured(plain);
    EXPECT_FALSE(have_equal_values(a.last, b.last));
    for (size_t i = 0; i < a.last.size(); ++i) EXPECT_TRUE(at::allclose(a.last[i], b.last[i], 1e-1, 1e-1));
  });
}

using ShardConfigurationsInFolder = testing::InFolder;

TEST_F(ShardConfigurationsInFolder, RanksWithStateInOtherPlacesAreNamed) {
  const auto words = run_ranks_collecting(2, [&](auto& process) {
    AcceleratorOptions options{.tune_allocator = false};
    options.shard = {.stage = ShardStage::kGradients};
    if (process.rank() == 1)
      options.shard.optimizer_offload = {.device = parallel::OffloadDevice::kFile, .path = path("state")};
    train_configured(Accelerator(process, options));
  });
  for (const auto& each : words)
    EXPECT_THAT(each, AllOf(HasSubstr("optimizer state in memory"), HasSubstr("optimizer state in a file")));
}

// Descriptors of this process whose file is, or was, in a folder.
int64_t num_files_open_in(const std::string& folder) {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    count += !gone && target.string().starts_with(folder) ? 1 : 0;
  }
  return count;
}

TEST_F(ShardConfigurationsInFolder, OneProcessKeepsItsStateInFilesToo) {
  run_ranks(1, [&](auto& process) {
    const auto plain = train_configured(Accelerator(process, with_configuration(configuration(2))));
    const std::string offload =
        R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": ")" + path("state") + "\"}}}";
    const Accelerator accelerator(process, with_configuration(configuration(3, offload)));
    ASSERT_NE(accelerator.sharding(), nullptr);
    const auto offloaded = train_configured(accelerator);

    EXPECT_TRUE(have_equal_values(plain.last, offloaded.last));
    EXPECT_GT(num_files_open_in(path("state")), 0);
    EXPECT_TRUE(std::filesystem::is_empty(path("state")));
  });
}

TEST(ShardConfigurations, AnAcceleratorThatEndsLeavesNothingBehind) {
  run_ranks(2, [](auto& process) {
    std::weak_ptr<parallel::Sharding> sharding;
    {
      const Accelerator accelerator(
          process, with_configuration(configuration(3, R"({"gradient_clipping": 1.0, "bf16": {"enabled": true}})")));
      train_configured(accelerator);
      sharding = accelerator.sharding();
      EXPECT_FALSE(sharding.expired());
    }
    EXPECT_TRUE(sharding.expired());
    process.wait_for_everyone();
  });
}

TEST(ShardConfigurations, AHandleThatOutlivesItsAcceleratorStillClips) {
  run_ranks(2, [](auto& process) {
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto accelerator =
        std::make_unique<Accelerator>(process, with_configuration(configuration(2, R"({"gradient_clipping": 0.001})")));
    auto [model, optimizer] = accelerator->prepare(net, sgd);
    accelerator->backward(rows_loss(net, *accelerator, 0));
    const auto before = configured_values(*net);
    accelerator.reset();
    optimizer.step();

    const auto after = configured_values(*net);
    double squares = 0;
    for (size_t i = 0; i < before.size(); ++i) squares += (after[i] - before[i]).pow(2).sum().item<double>();
    EXPECT_NEAR(std::sqrt(squares), 0.001, 1e-5);
    process.wait_for_everyone();
  });
}

}  // namespace
}  // namespace hasten
