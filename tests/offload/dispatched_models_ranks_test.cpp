// Dispatched models and prepare: evaluation in one process alone, and prepared models that are not dispatched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/offload/load/dispatch.h"
#include "offload/stack_net.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

class DispatchedModels : public offload::StackInFile {};

TEST_F(DispatchedModels, ArePreparedByOneProcessAndStayWhereTheyAre) {
  run_ranks(1, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    auto dispatched = load(limited());
    auto model = accelerator.prepare(dispatched.model());

    const torch::NoGradGuard no_grad;
    for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(testing::same_values(model(x_), wanted_));
    EXPECT_GT(dispatched.stream_counts().drops, 0);
  });
}

TEST_F(DispatchedModels, AreNotTrainedBySeveralProcessesOrSplit) {
  const auto words_with = [&](int world, ShardStage stage) {
    return run_ranks_collecting(world, [&](auto& process) {
      AcceleratorOptions options{.tune_allocator = false};
      options.shard = {.stage = stage};
      if (world == 1)
        options.shard.optimizer_offload = {.device = parallel::OffloadDevice::kFile, .path = path("state")};
      const Accelerator accelerator(process, options);
      auto dispatched = load(limited());
      auto model = accelerator.prepare(dispatched.model());
    });
  };
  EXPECT_THAT(words_with(2, ShardStage::kNone),
              Each(AllOf(HasSubstr("Stack"), HasSubstr("2 processes"), HasSubstr("undispatch"))));
  EXPECT_THAT(words_with(2, ShardStage::kParameters), Each(AllOf(HasSubstr("stage 3"), HasSubstr("undispatch"))));
  EXPECT_THAT(words_with(1, ShardStage::kGradients), Each(HasSubstr("stage 2")));
}

TEST_F(DispatchedModels, APreparedModelIsNotDispatched) {
  for (const auto stage : {ShardStage::kNone, ShardStage::kParameters}) {
    const auto words = run_ranks_collecting(2, [&](auto& process) {
      AcceleratorOptions options{.tune_allocator = false};
      options.shard = {.stage = stage};
      const Accelerator accelerator(process, options);
      offload::Stack net;
      auto model = accelerator.prepare(net);
      offload::dispatch_model(net, offload::DeviceMap{{"", "cpu"}});
    });
    EXPECT_THAT(words, Each(AllOf(HasSubstr("dispatch_model: 'layers.0.weight'"), HasSubstr("prepared model"))));
  }
}

TEST_F(DispatchedModels, AModelOnStagesIsNotPlaced) {
  const auto words = run_ranks_collecting(2, [&](auto& process) {
    AcceleratorOptions options{.tune_allocator = false};
    options.parallel.pp = 2;
    const Accelerator accelerator(process, options);
    offload::Stack net;
    auto model = accelerator.prepare(net);
    accelerator.wait_for_everyone();
    offload::cpu_offload(net);
  });
  EXPECT_THAT(words, Each(AllOf(HasSubstr("cpu_offload: 'layers."), HasSubstr("stages of a pipeline"))));
}

}  // namespace
}  // namespace hasten
