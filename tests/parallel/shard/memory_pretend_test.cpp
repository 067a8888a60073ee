// Memory of ranks with a pretend GPU each, beside the column of devices of the plan's table.
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>

#include "hasten/plan/shard_memory.h"
#include "support/device_models.h"
#include "support/nccl_double.h"
#include "support/pretend/counts.h"
#include "support/ranks.h"

namespace hasten {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kWidth = 256, kLayers = 8, kUnit = kWidth * kWidth + kWidth;

// The most bytes that one of the GPUs holds in a step behind the first two.
double most_bytes_of_a_step(parallel::ShardStage stage) {
  AcceleratorOptions options = testing::quiet_options();
  options.shard = {.stage = stage, .wrap = {.unit_bytes = 4 * kUnit}};
  std::vector<torch::nn::Sequential> nets;
  for (int rank = 0; rank < kRanks; ++rank) {
    torch::manual_seed(3);
    torch::nn::Sequential net;
    for (int64_t layer = 0; layer < kLayers; ++layer) net->push_back(torch::nn::Linear(kWidth, kWidth));
    nets.push_back(net);
  }
  auto* const counts = testing::pretend::counts();
  std::array<int64_t, kRanks> most = {};
  const testing::UsesNcclDouble with_double;
  testing::run_ranks(kRanks,
                     [&](process::Process& process) {
                       const auto rank = static_cast<size_t>(process.rank());
                       const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
                       const c10::DeviceGuard guard(device);
                       Accelerator accelerator(process::Process(process.identity(), process.group(), device), options);
                       const int64_t before = counts->bytes[rank];
                       torch::optim::AdamW adam(nets[rank]->parameters(), 1e-3);
                       auto [model, optimizer] = accelerator.prepare(nets[rank], adam);
                       const at::Tensor x = torch::ones({1, kWidth}, device);
                       for (int step = 0; step < 3; ++step) {
                         accelerator.wait_for_everyone();
                         counts->peak_bytes[rank] = counts->bytes[rank];
                         optimizer.zero_grad();
                         accelerator.backward(model(x).square().mean());
                         optimizer.step();
                         accelerator.wait_for_everyone();
                         most[rank] = counts->peak_bytes[rank] - before;
                       }
                     },
                     {.check = false});
  return static_cast<double>(*std::max_element(most.begin(), most.end()));
}

TEST(ShardMemoryOnGpus, StagesTakeWhatTheirFormulasSay) {
  const auto rows = plan::shard_memory(
      {.parameters = kLayers * kUnit, .largest_unit = kUnit, .ranks_per_host = kRanks, .optimizer_bytes = 8});
  using enum parallel::ShardStage;
  for (const auto stage : {kNone, kOptimizer, kGradients, kParameters}) {
    const auto place = static_cast<size_t>(stage);
    const double share = most_bytes_of_a_step(stage) / static_cast<double>(rows[place].on_device);

    EXPECT_NEAR(share, 1, 0.15) << rows[place].strategy;
  }
}

}  // namespace
}  // namespace hasten
