// Memory of ranks with a pretend GPU each, beside the column of devices of the plan's table.
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "hasten/plan/shard_memory.h"
#include "support/device_models.h"
#include "support/nccl_double.h"
#include "support/pretend/counts.h"
#include "support/ranks.h"

namespace hasten {
namespace {

constexpr int64_t kWidth = 256, kLayers = 8, kUnit = kWidth * kWidth + kWidth;

// Where a rank's optimizer state and parameters rest.
struct Rest {
  bool state_on_host = false, parameters_on_host = false;
};

// The most bytes that one of the GPUs holds in a step behind the first two.
double most_bytes_of_a_step(int num_ranks, parallel::ShardStage stage, const Rest& rest = {}) {
  AcceleratorOptions options = testing::quiet_options();
  options.shard = {.stage = stage, .wrap = {.unit_bytes = 4 * kUnit}};
  if (rest.state_on_host) options.shard.optimizer_offload.device = parallel::OffloadDevice::kCpu;
  if (rest.parameters_on_host) options.shard.parameter_offload.device = parallel::OffloadDevice::kCpu;
  std::vector<torch::nn::Sequential> nets;
  for (int rank = 0; rank < num_ranks; ++rank) {
    torch::manual_seed(3);
    torch::nn::Sequential net;
    for (int64_t layer = 0; layer < kLayers; ++layer) net->push_back(torch::nn::Linear(kWidth, kWidth));
    nets.push_back(net);
  }
  auto* const counts = testing::pretend::counts();
  std::vector<int64_t> most(static_cast<size_t>(num_ranks));
  const testing::UsesNcclDouble with_double;
  testing::run_ranks(num_ranks,
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

TEST(ShardMemoryOnGpus, IsWhatTheFormulasSayForStagesAndForStateOnTheHost) {
  using enum parallel::ShardStage;
  for (const int num_ranks : {2, 4}) {
    const auto rows = plan::shard_memory(
        {.parameters = kLayers * kUnit, .largest_unit = kUnit, .ranks_per_host = num_ranks, .optimizer_bytes = 8});
    const auto expect_row = [&](size_t row, double most) {
      EXPECT_NEAR(most / static_cast<double>(rows[row].on_device), 1, 0.05)
          << rows[row].strategy << " on " << num_ranks << " ranks: " << most / (4 * kUnit) << " units, the formula "
          << static_cast<double>(rows[row].on_device) / (4 * kUnit);
    };
    for (const auto stage : {kNone, kOptimizer, kGradients, kParameters})
      expect_row(static_cast<size_t>(stage), most_bytes_of_a_step(num_ranks, stage));
    expect_row(4, most_bytes_of_a_step(num_ranks, kParameters, {.state_on_host = true}));
    expect_row(5, most_bytes_of_a_step(num_ranks, kParameters, {.state_on_host = true, .parameters_on_host = true}));
  }
}

}  // namespace
}  // namespace hasten
