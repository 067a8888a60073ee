// Loads and saves of sharded runs: state in slices and on the CPU, writes before a load, ties and missing weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/training_run.h"
#include "hasten/checkpoint/options.h"
#include "hasten/core/error.h"
#include "hasten/files/folders/open_source.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

class ShardedRuns : public testing::InFolder {};

TEST_F(ShardedRuns, StateOnTheHostIsLoadedThereAndCounts) {
  for (const auto stage : {ShardStage::kOptimizer, ShardStage::kGradients, ShardStage::kParameters}) {
    for (const auto layout : {checkpoint::Layout::kHasten, checkpoint::Layout::kAccelerate}) {
      const Setting setting{2, stage, /*state_on_host=*/true};
      const std::string folder = path(setting.name() + (layout == checkpoint::Layout::kHasten ? "" : "_accelerate"));
      run_ranks(2, [&](auto& process) {
        TrainingRun whole(process, setting);
        whole.train(4);
        whole.accelerator.save_state(folder, {.layout = layout});
        whole.train(4);
        TrainingRun loaded(process, setting, {}, 99);
        loaded.train(1);  // stripes on the host have other values
        loaded.accelerator.load_state(folder);
        for (const auto& [parameter, state] : loaded.adam->state()) {
          const auto& moment = static_cast<const torch::optim::AdamWParamState&>(*state).exp_avg();
          EXPECT_TRUE(moment.is_cpu()) << setting.name();
        }
        loaded.train(4);

        EXPECT_TRUE(testing::same_values(whole.values(), loaded.values(), 0)) << folder;
        process.wait_for_everyone();
      });
    }
  }
}

TEST_F(ShardedRuns, ALoadTakesTheRanksOwnPartsOfStateAlone) {
  run_ranks(2, [&](auto& process) {
    const Setting setting{2, ShardStage::kGradients};
    TrainingRun saved(process, setting);
    saved.train(2);
    int64_t numel = 0;
    for (const auto& parameter : saved.net->parameters()) numel += parameter.numel();
    for (const auto layout : {checkpoint::Layout::kHasten, checkpoint::Layout::kAccelerate}) {
      const std::string folder = path(layout == checkpoint::Layout::kHasten ? "hasten" : "accelerate");
      saved.accelerator.save_state(folder, {.layout = layout});
      TrainingRun loaded(process, setting);
      loaded.accelerator.load_state(folder);
      int64_t own = 0;
      for (const auto& [parameter, state] : loaded.adam->state())
        own += static_cast<const torch::optim::AdamWParamState&>(*state).exp_avg().numel();

      EXPECT_LT(own, numel) << folder;
      EXPECT_GT(own, 0) << folder;
      process.wait_for_everyone();
    }
  });
}

TEST_F(ShardedRuns, WhatWasWrittenBeforeALoadIsGone) {
  for (const auto stage : {ShardStage::kOptimizer, ShardStage::kParameters}) {
    const std::string folder = path(text("stage", static_cast<int>(stage)));
    run_ranks(2, [&](auto& process) {
      TrainingRun run(process, {2, stage});
      run.train(2);
      run.accelerator.save_state(folder);
      const auto saved = run.values();
      {
        const at::NoGradGuard no_grad;
        for (auto& parameter : run.net->parameters()) parameter.mul_(2);
      }
      run.accelerator.load_state(folder);

      EXPECT_TRUE(testing::same_values(run.values(), saved)) << folder;
      process.wait_for_everyone();
    });
  }
}

struct MoreThanAnMlpImpl : testing::MlpImpl {
  MoreThanAnMlpImpl() { register_module("third", third); }
  torch::nn::Linear third{4, 4};
};
TORCH_MODULE(MoreThanAnMlp);

TEST_F(ShardedRuns, WeightsThatTheFolderLacksAreNamedInEveryStage) {
  for (const auto stage : {ShardStage::kNone, ShardStage::kParameters}) {
    const std::string folder = path(text("stage", static_cast<int>(stage)));
    run_ranks(2, [&](auto& process) {
      Accelerator accelerator(process, options_of({2, stage}));
      testing::Mlp small;
      auto prepared_small = accelerator.prepare(small);
      accelerator.save_state(folder);
      Accelerator other(process, options_of({2, stage}));
      MoreThanAnMlp large;
      auto prepared_large = other.prepare(large);

      const auto words = testing::words_of<UsageError>([&] { other.load_state(folder); });

      EXPECT_THAT(words, HasSubstr("missing (2): third.weight, third.bias")) << folder;
      process.wait_for_everyone();
    });
  }
}

struct TiedLayersImpl : torch::nn::Module {
  TiedLayersImpl() {
    register_module("first", first);
    weight = register_parameter("weight", first->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(first(x), weight); }
  torch::nn::Linear first{16, 16};
  at::Tensor weight;
};
TORCH_MODULE(TiedLayers);

TEST_F(ShardedRuns, ATiedWeightIsOneInAcceleratesLayoutAndInExports) {
  for (const auto stage : {ShardStage::kNone, ShardStage::kParameters}) {
    const std::string folder = path(text("stage", static_cast<int>(stage)));
    run_ranks(2, [&](auto& process) {
      Accelerator accelerator(process, options_of({2, stage}));
      TiedLayers net;
      auto model = accelerator.prepare(net);
      accelerator.save_state(folder + "/state", {.layout = checkpoint::Layout::kAccelerate});
      accelerator.save_model(model, folder + "/model");
      const auto state = accelerator.get_state_dict(model);
      EXPECT_EQ(state.at("weight").const_data_ptr(), state.at("first.weight").const_data_ptr());
      process.wait_for_everyone();
    });
    for (const char* name : {"/state/model.safetensors", "/model/model.safetensors"})
      EXPECT_EQ(files::open_source(folder + name)->names().size(), 2u) << folder << name;
  }
}

}  // namespace
}  // namespace hasten
