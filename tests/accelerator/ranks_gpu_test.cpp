// Two processes on one GPU: NCCL refuses that, so Gloo carries their tensors. Each takes itself for the only one of its
// host.
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <iostream>

#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "support/device_models.h"
#include "support/processes.h"

namespace hasten {
namespace {

using testing::kGpu;
using testing::quiet_options;
using torch::data::samplers::SequentialSampler;
namespace F = torch::nn::functional;

class RanksGpu : public testing::OnGpu {};

const std::map<std::string, std::string> kOneGpu = {
    {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"HASTEN_BACKEND", "gloo"}, {"HASTEN_PRETEND_DEVICES", "1"}};

void expect_success(const char* name) {
  for (const auto& result : testing::run_processes(2, name, kOneGpu)) EXPECT_EQ(result.exit_code, 0) << result.output;
}

// Exit code of a case: failures of EXPECT are printed there.
int code() {
  return ::testing::Test::HasFailure() ? 1 : 0;
}

at::Tensor share_of(const at::Tensor& all, const Accelerator& accelerator) {
  const int64_t rows = all.size(0) / accelerator.world_size();
  return all.narrow(0, rows * accelerator.rank(), rows).to(accelerator.device());
}

template <class Forward, class Backward, class Step>
void take_steps(const Forward& forward, const at::Tensor& x, const at::Tensor& y, const Backward& backward,
                const Step& step) {
  for (int i = 0; i < 5; ++i) {
    backward(F::cross_entropy(forward(x), y));
    step();
  }
}

HASTEN_PROCESS_CASE(gpu_data_parallel) {
  Accelerator accelerator(quiet_options());
  EXPECT_EQ(accelerator.device(), kGpu);
  const testing::SmallData data(48);
  const auto sgd_options = torch::optim::SGDOptions(0.1).momentum(0.9);
  auto ours = testing::small_net(), plain = testing::small_net();
  torch::optim::SGD sgd(ours->parameters(), sgd_options);
  auto [model, optimizer] = accelerator.prepare(ours, sgd);
  take_steps([&, &model = model](const at::Tensor& x) { return model(x); }, share_of(data.x, accelerator),
             share_of(data.y, accelerator),
             [&, &optimizer = optimizer](const at::Tensor& loss) {
               optimizer.zero_grad();
               accelerator.backward(loss);
             },
             [&, &optimizer = optimizer] { optimizer.step(); });
  plain->to(kGpu);
  torch::optim::SGD alone(plain->parameters(), sgd_options);
  take_steps([&](const at::Tensor& x) { return plain->forward(x); }, data.x.to(kGpu), data.y.to(kGpu),
             [&](const at::Tensor& loss) {
               alone.zero_grad();
               loss.backward();
             },
             [&] { alone.step(); });
  testing::expect_near(testing::values_of(ours->parameters()), testing::values_of(plain->parameters()), 1e-4);
  return code();
}

TEST_F(RanksGpu, DataParallelStepsEqualThoseOfOneProcessOnTheWholeBatch) {
  expect_success("gpu_data_parallel");
}

HASTEN_PROCESS_CASE(gpu_buffers) {
  Accelerator accelerator(quiet_options());
  const testing::SmallData data(48);
  auto net = testing::small_net(true);
  auto model = accelerator.prepare(net);
  for (int i = 0; i < 2; ++i) model(share_of(data.x, accelerator));
  accelerator.backward(model(share_of(data.x, accelerator)).sum());
  for (const auto& buffer : net->buffers()) {
    const auto all = accelerator.group().all_gather(buffer.to(at::kFloat).reshape({-1}));
    // The last forward's own statistics come on top of rank 0's, which they began with.
    EXPECT_TRUE(all[0].isfinite().all().item<bool>());
  }
  EXPECT_TRUE(net->buffers()[0].is_cuda());
  return code();
}

TEST_F(RanksGpu, BuffersFollowRank0) {
  expect_success("gpu_buffers");
}

HASTEN_PROCESS_CASE(gpu_rows_of_none) {
  Accelerator accelerator(quiet_options());
  const auto all = accelerator.group().all_gather(torch::ones({accelerator.rank() == 0 ? 0 : 3, 2}, kGpu));
  EXPECT_EQ(all[0].sizes(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(all[1].sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_TRUE(all[0].is_cuda() && all[1].is_cuda());
  auto nothing = torch::ones({0, 3}, kGpu);
  accelerator.group().all_reduce_(nothing);
  accelerator.group().broadcast_(nothing, 1);
  return code();
}

TEST_F(RanksGpu, ARankMayHaveNoRows) {
  expect_success("gpu_rows_of_none");
}

HASTEN_PROCESS_CASE(gpu_metrics) {
  Accelerator accelerator(quiet_options());
  auto loader = accelerator.data_loader<SequentialSampler>(data::TensorDataset(torch::arange(9, at::kFloat)),
                                                           torch::data::DataLoaderOptions(2));
  std::vector<at::Tensor> seen;
  for (const auto& batch : loader) seen.push_back(accelerator.gather_for_metrics(batch));
  EXPECT_TRUE(std::get<0>(torch::cat(seen).sort()).cpu().equal(torch::arange(9, at::kFloat)));
  return code();
}

TEST_F(RanksGpu, GatherForMetricsLeavesOutWhatWasRepeated) {
  expect_success("gpu_metrics");
}

HASTEN_PROCESS_CASE(gpu_sync_batch_norm) {
  Accelerator accelerator(quiet_options());
  const testing::SmallData data(48);
  const auto run = [&](const at::Tensor& rows, bool sync) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(16));
    net->to(kGpu);
    if (sync) parallel::convert_sync_batchnorm(*net, accelerator.group());
    const auto x = rows.clone().requires_grad_();
    net->forward(x).pow(3).sum().backward();
    return std::pair(net->buffers()[1].cpu(), x.grad().cpu());
  };
  const auto [mine, gradient] = run(share_of(data.x, accelerator), true);
  const auto [whole, all] = run(data.x.to(kGpu), false);
  testing::expect_near({mine, gradient.to(kGpu).cpu()}, {whole, share_of(all, accelerator).cpu()}, 1e-4);
  return code();
}

TEST_F(RanksGpu, SyncBatchNormEqualsTheWholeBatch) {
  expect_success("gpu_sync_batch_norm");
}

HASTEN_PROCESS_CASE(gpu_stage_3) {
  auto options = quiet_options();
  options.shard.stage = ShardStage::kParameters;
  try {
    Accelerator accelerator(options);
    torch::nn::Linear net(256, 256);
    torch::optim::Adam adam(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(torch::ones({1, 256}, kGpu)).sum());
    optimizer.step();
    int64_t bytes = 0;
    for (auto& [key, state] : adam.state()) {
      bytes += static_cast<int64_t>(static_cast<torch::optim::AdamParamState&>(*state).exp_avg().nbytes());
    }
    EXPECT_LT(bytes, 256 * 256 * 4) << "each rank has the whole state, and nothing says so";
  } catch (const UsageError& error) {
    std::cout << "refused: " << error.what() << std::endl;
  }
  return code();
}

TEST_F(RanksGpu, Stage3SplitsTheOptimizersStateOrIsRefused) {
  expect_success("gpu_stage_3");
}

}  // namespace
}  // namespace hasten
