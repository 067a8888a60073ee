// Pipelines whose stages have a pretend GPU each train as one process on the CPU, also where inputs of regions wait on
// the host.
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/recompute/recompute.h"
#include "support/device_models.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using Pair = std::pair<at::Tensor, at::Tensor>;

// Returns the bytes of inputs of regions that were sent to the host.
int64_t expect_steps_of_one_process(int chunks, const parallel::RecomputeOptions& recompute,
                                    const parallel::ShardOptions& shard = {}) {
  constexpr int kSteps = 3;
  const auto expected = testing::one_process(testing::gpt2_model(), kSteps, false, 0.5);
  const auto batch = testing::parallel_batch();
  AcceleratorOptions options = testing::quiet_options();
  const int data = shard.stage == parallel::ShardStage::kNone ? 1 : 2;
  options.parallel = {.dp_shard = data, .pp = 2, .chunks = chunks, .microbatches = 4 / data};
  options.recompute = recompute;
  options.shard = shard;
  std::vector<std::shared_ptr<models::Gpt2Impl>> nets;
  for (int i = 0; i < 2 * data; ++i) {
    torch::manual_seed(0);
    nets.push_back(std::dynamic_pointer_cast<models::Gpt2Impl>(testing::gpt2_model().make()));
  }
  const int64_t before = parallel::recompute_counts().bytes_sent;
  testing::run_ranks(2 * data, [&](process::Process& process) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(process.rank()));
    const c10::DeviceGuard guard(device);
    const Accelerator accelerator(process::Process(process.identity(), process.group(), device), options);
    auto net = nets[static_cast<size_t>(process.rank())];
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const int64_t rows = batch.x.size(0) / data, first = rows * (process.rank() % data);
    const Pair mine(batch.x.narrow(0, first, rows).to(device), batch.y.narrow(0, first, rows).to(device));
    for (int step = 0; step < kSteps; ++step) {
      const auto loss = [&, &model = model](const Pair& part) {
        return testing::language_loss(model(part.first, at::Tensor(), nullptr), part.second);
      };
      const at::Tensor value = accelerator.forward_backward(mine, loss);
      if (data == 1) {
        EXPECT_NEAR(value.item<double>(), expected.losses[static_cast<size_t>(step)], 1e-4) << step;
      }
      accelerator.clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& item : net->named_parameters()) {
      EXPECT_EQ(item.value().device(), device) << item.key();
      const at::Tensor whole = parallel::gather_parameter(item.value()).cpu();
      EXPECT_LT((whole - expected.weights.at(item.key())).abs().max().item<double>(), 2e-3) << item.key();
    }
    process.wait_for_everyone();
  });
  return parallel::recompute_counts().bytes_sent - before;
}

TEST(PipelinesOnGpus, TrainAsOneProcessOnTheCpu) {
  EXPECT_EQ(expect_steps_of_one_process(1, {}), 0);
  EXPECT_EQ(expect_steps_of_one_process(2, {}), 0);
}

TEST(PipelinesOnGpus, InputsOfRegionsWaitOnTheHost) {
  EXPECT_EQ(expect_steps_of_one_process(1, {.enabled = true}), 0);
  EXPECT_GT(expect_steps_of_one_process(1, {.enabled = true, .offload = true}), 0);
  EXPECT_GT(expect_steps_of_one_process(2, {.enabled = true, .offload = true}), 0);
}

// The stages are divided before their parameters go to the devices.
TEST(PipelinesOnGpus, StagesWhoseParametersAreSplitTrainOnTheirDevices) {
  expect_steps_of_one_process(1, {}, {.stage = parallel::ShardStage::kParameters, .wrap = {.unit_bytes = 4096}});
}

}  // namespace
}  // namespace hasten
