// Files of sharded runs: the bytes of a run that is not sharded, and each slice once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/training_run.h"
#include "hasten/accelerator.h"
#include "hasten/core/file.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using testing::run_ranks;

class ShardedFiles : public testing::InFolder {};

TEST_F(ShardedFiles, WeightsOfAllStagesAreTheSameBytes) {
  for (const auto stage :
       {ShardStage::kNone, ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
    run_ranks(2, [&](auto& process) {
      TrainingRun run(process, {2, stage});
      run.train(5);
      run.accelerator.save_model(*run.model, path(text("stage", static_cast<int>(stage))));
      process.wait_for_everyone();
    });
  }

  const auto whole = core::read_file(path("stage0/model.safetensors"));
  EXPECT_GT(whole.value().size(), 1000U);
  for (const char* stage : {"stage1", "stage2", "stage3"}) {
    EXPECT_TRUE(core::read_file(path(text(stage, "/model.safetensors"))) == whole) << stage;
  }
}

// One of the groups with the same slices writes them; a run without groups goes on from there.
TEST_F(ShardedFiles, StateThatGroupsReplicateIsWrittenOnce) {
  run_ranks(4, [&](auto& process) {
    AcceleratorOptions options{.tune_allocator = false};
    options.shard = {.stage = ShardStage::kGradients, .shard_over = "shard", .mesh = {{"replicate", 2}, {"shard", 2}}};
    const auto train = [&](const Accelerator& accelerator, const auto& model, const auto& optimizer, int first) {
      for (int step = first; step < first + 3; ++step) {
        optimizer.zero_grad();
        const auto x = testing::here(testing::problem_for("mlp", 4 * step + accelerator.rank()).inputs);
        accelerator.backward(model(x).pow(2).mean());
        optimizer.step();
      }
    };
    std::vector<std::vector<at::Tensor>> ends;
    for (const bool in_groups : {true, true, false}) {
      if (!in_groups) options.shard.shard_over.clear();
      const Accelerator accelerator(process, options);
      testing::Mlp net;
      testing::initialise(*net, 3 + ends.size());
      torch::optim::AdamW adam(net->parameters(), 0.01);
      const auto [model, optimizer] = accelerator.prepare(net, adam);
      if (ends.empty()) {
        train(accelerator, model, optimizer, 0);
        accelerator.save_state(path("saved"));
      } else {
        accelerator.load_state(path("saved"));
      }
      train(accelerator, model, optimizer, 3);
      auto& values = ends.emplace_back();
      for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
      process.wait_for_everyone();
    }

    for (size_t i = 0; i < ends[0].size(); ++i) {
      EXPECT_TRUE(testing::same_values(ends[0][i], ends[1][i])) << i;
      EXPECT_TRUE(at::allclose(ends[0][i], ends[2][i], 1e-4, 1e-5)) << i;
    }
  });
}

}  // namespace
}  // namespace hasten
