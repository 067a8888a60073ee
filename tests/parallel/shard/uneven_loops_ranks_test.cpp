// join_uneven_inputs with sharding: ranks without data step their slices all the same, and the numbers are Ddp's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/parallel/join/joined_loop.h"
#include "parallel/join/joined_sharding.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

AcceleratorOptions uneven_options(ShardStage stage, int64_t window = 1) {
  AcceleratorOptions options{.gradient_accumulation_steps = window, .tune_allocator = false};
  options.shard = {.stage = stage, .wrap = {.unit_bytes = 400}};
  return options;
}

at::Tensor uneven_loss(testing::Mlp net, const Accelerator& accelerator, int step) {
  const auto problem = testing::problem_for("mlp", 50 + step);
  const auto rows = [&](const at::Tensor& all) {
    return testing::here(all.chunk(accelerator.world_size())[accelerator.rank()]);
  };
  return torch::cross_entropy_loss(net->forward(rows(problem.inputs)), rows(problem.targets));
}

struct Uneven {
  std::vector<at::Tensor> parameters;
  std::vector<double> rates;
};

// Rank 0 has two batches, the others five, with clipping and a learning rate that changes; then all go on.
Uneven trained_unevenly(const Accelerator& accelerator, bool zero_first) {
  testing::Mlp net;
  testing::initialise(*net, 5);
  torch::optim::AdamW adam(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto steps = [&, &model = model, &optimizer = optimizer](int first, int count) {
    for (int step = first; step < first + count; ++step) {
      const auto scope = accelerator.accumulate(model);
      if (zero_first) optimizer.zero_grad();
      accelerator.backward(uneven_loss(net, accelerator, step));
      if (accelerator.sync_gradients()) {
        accelerator.clip_grad_norm_(net->parameters(), 0.05);
        accelerator.clip_grad_value_(net->parameters(), 0.04);
      }
      optimizer.step();
      if (!zero_first) optimizer.zero_grad();
      for (auto& group : optimizer->param_groups()) group.options().set_lr(0.01 / (step + 2));
    }
  };
  accelerator.join_uneven_inputs(model, [&] { steps(0, accelerator.rank() == 0 ? 2 : 5); });
  steps(5, 2);
  Uneven run;
  for (const auto& parameter : net->parameters()) run.parameters.push_back(parameter.detach().clone());
  for (auto& group : optimizer->param_groups()) run.rates.push_back(group.options().get_lr());
  accelerator.wait_for_everyone();
  return run;
}

void expect_numbers_of_ddp(int world_size, int64_t window, bool zero_first) {
  run_ranks(world_size, [&](auto& process) {
    const auto plain = trained_unevenly(Accelerator(process, uneven_options(ShardStage::kNone, window)), zero_first);
    // On devices stage 3 is refused: see below.
    std::vector stages{ShardStage::kOptimizer, ShardStage::kGradients};
    if (!testing::on_device()) stages.push_back(ShardStage::kParameters);
    for (const auto stage : stages) {
      const auto sharded = trained_unevenly(Accelerator(process, uneven_options(stage, window)), zero_first);
      for (size_t i = 0; i < plain.parameters.size(); ++i) {
        const double tolerance = testing::on_device() ? 1e-5 : 1e-6;
        EXPECT_TRUE(at::allclose(plain.parameters[i], sharded.parameters[i], tolerance, 0.1 * tolerance))
            << "stage " << static_cast<int>(stage) << ", parameter " << i << ", off by "
            << (plain.parameters[i] - sharded.parameters[i]).abs().max().template item<float>();
      }
      EXPECT_EQ(plain.rates, sharded.rates);
    }
  });
}

TEST(ShardUnevenLoops, GiveTheNumbersOfDdp) {
  for (const int world_size : {2, 3}) expect_numbers_of_ddp(world_size, 1, true);
}

TEST(ShardUnevenLoops, ThatForgetGradientsBehindTheStepDoToo) {
  for (const int world_size : {2, 3}) expect_numbers_of_ddp(world_size, 1, false);
}

// The loop ends inside a window, which the batches behind it end.
TEST(ShardUnevenLoops, ThatAccumulateDoToo) {
  for (const int world_size : {2, 3}) expect_numbers_of_ddp(world_size, 2, false);
}

TEST(ShardUnevenLoops, OfStageThreeOnDevicesAreRefused) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    const Accelerator accelerator(process, uneven_options(ShardStage::kParameters));
    testing::Mlp net;
    auto model = accelerator.prepare(net);
    accelerator.join_uneven_inputs(model, [] {});
  });

  for (const auto& each : words) EXPECT_EQ(each.find("Use stage 1 or 2") != std::string::npos, testing::on_device());
}

TEST(ShardUnevenLoops, WithALossScaleAreRefused) {
  const auto words = run_ranks_collecting(2, [](auto& process) {
    auto options = uneven_options(ShardStage::kGradients);
    options.mixed_precision = precision::Precision::kFp16;
    const Accelerator accelerator(process, options);
    testing::Mlp net;
    auto model = accelerator.prepare(net);
    accelerator.join_uneven_inputs(model, [] {});
  });

  EXPECT_THAT(words, Each(HasSubstr("even_batches")));
}

}  // namespace
}  // namespace hasten
