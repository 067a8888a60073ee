// The small names of the front door: one line about it, functions for one rank, forms without an exception.
#include "accelerator/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <sstream>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using process::Process;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::run_ranks;

TEST(AcceleratorSummary, IsOneLineForABugReport) {
  run_ranks(2, [](Process& process) {
    const Accelerator accelerator(
        process, {.gradient_accumulation_steps = 4, .mixed_precision = Precision::kBf16, .tune_allocator = false});
    std::ostringstream out;
    out << accelerator;

    EXPECT_THAT(out.str(),
                MatchesRegex("hasten [0-9.]+, rank [01]/2, local rank [01]/2, MULTI_CPU, device cpu, backend "
                             "shm, mixed precision bf16, 4 batches to a step"));
    EXPECT_THAT(out.str(), HasSubstr("rank " + std::to_string(process.rank()) + "/2"));
  });
}

TEST(AcceleratorSummary, FunctionsForOneRankRunThereAlone) {
  std::atomic<int> last = 0, second = 0, local = 0;
  run_ranks(3, [&](Process& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    accelerator.on_last_process([&] { last += 10 + process.rank(); });
    accelerator.on_process(1, [&] { second += 10 + process.rank(); });
    accelerator.on_local_process(0, [&] { local += 10 + process.local_rank(); });
    EXPECT_THROW(accelerator.on_process(3, [] {}), UsageError);
  });

  EXPECT_EQ(last, 12);
  EXPECT_EQ(second, 11);
  EXPECT_EQ(local, 10);
}

TEST(AcceleratorSummary, WithoutDeepSpeedThereIsNoPlugin) {
  run_ranks(1, [](Process& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});

    EXPECT_EQ(accelerator.find_deepspeed_plugin(), nullptr);
    EXPECT_THROW(accelerator.deepspeed_plugin(), UsageError);
  });
  run_ranks(2, [](Process& process) {
    const auto config = core::Value::parse_json(R"({"zero_optimization": {"stage": 1}})");
    const Accelerator accelerator(process,
                                  {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});

    EXPECT_EQ(accelerator.find_deepspeed_plugin(), &accelerator.deepspeed_plugin());
  });
}

TEST(AcceleratorSummary, SeveralOptimizersAreUnscaledAtOnceAndClearForgetsThem) {
  run_ranks(1, [](Process& process) {
    const Accelerator accelerator(
        process, {.mixed_precision = Precision::kFp16, .scaler = {.init_scale = 8}, .tune_allocator = false});
    testing::Mlp one, two;
    testing::initialise(*one, 1);
    testing::initialise(*two, 2);
    torch::optim::SGD first(one->parameters(), 0.1), second(two->parameters(), 0.1);
    auto model = accelerator.prepare_model(one, false);
    auto other = accelerator.prepare_model(two);
    auto a = accelerator.prepare_optimizer(first);
    auto b = accelerator.prepare_optimizer(second, true);
    const auto problem = testing::problem_for("mlp");
    const auto loss =
        torch::nn::functional::cross_entropy(model(problem.inputs) + other(problem.inputs), problem.targets);
    accelerator.backward(loss);
    const auto scaled = one->parameters()[0].grad().norm().item<double>();
    const auto scaled_too = two->parameters()[0].grad().norm().item<double>();

    accelerator.unscale_gradients(a, b);

    EXPECT_NEAR(one->parameters()[0].grad().norm().item<double>() * 8, scaled, 1e-4 * scaled);
    EXPECT_NEAR(two->parameters()[0].grad().norm().item<double>() * 8, scaled_too, 1e-4 * scaled_too);
    accelerator.clear();
  });
}

}  // namespace
}  // namespace hasten
