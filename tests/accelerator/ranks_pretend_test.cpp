// Ranks with a pretend GPU each, over a double of NCCL that finishes late: training equals one process's, and counts of
// kernels and waits stay where they belong.
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include "hasten/parallel/norm/sync_batch_norm.h"
#include "support/device_models.h"
#include "support/nccl_double.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using testing::kGpu;
using testing::quiet_options;
namespace F = torch::nn::functional;

// Runs as ranks, each with an Accelerator on a GPU of its own.
void run_on_gpus(int world_size, const std::function<void(Accelerator&)>& fn, const AcceleratorOptions& options) {
  const testing::UsesNcclDouble with_double;
  testing::run_ranks(world_size,
                     [&](process::Process& process) {
                       const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(process.rank()));
                       const c10::DeviceGuard guard(device);
                       Accelerator accelerator(process::Process(process.identity(), process.group(), device), options);
                       fn(accelerator);
                     },
                     {.check = false});
}

// Made one after the other, since ranks that are threads share torch's default generator.
std::vector<torch::nn::Sequential> nets_of(int count, bool norm) {
  std::vector<torch::nn::Sequential> nets;
  for (int i = 0; i < count; ++i) nets.push_back(testing::small_net(norm));
  return nets;
}

at::Tensor share_of(const at::Tensor& all, const Accelerator& accelerator) {
  const int64_t rows = all.size(0) / accelerator.world_size();
  return all.narrow(0, rows * accelerator.rank(), rows).to(accelerator.device());
}

void train(Accelerator& accelerator, torch::nn::Sequential net, const testing::SmallData& data, int steps = 4) {
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    accelerator.backward(F::cross_entropy(model(share_of(data.x, accelerator)), share_of(data.y, accelerator)));
    optimizer.step();
  }
}

std::vector<at::Tensor> trained_alone(const testing::SmallData& data) {
  auto net = testing::small_net();
  Accelerator alone(testing::alone_on(c10::kCPU), quiet_options());
  train(alone, net, data);
  return testing::values_of(net->parameters());
}

TEST(RanksOnGpus, DataParallelStepsEqualThoseOfOneProcess) {
  const testing::SmallData data(48);
  const auto expected = trained_alone(data);
  for (const int world_size : {2, 3}) {
    const auto nets = nets_of(world_size, false);
    run_on_gpus(
        world_size,
        [&](Accelerator& accelerator) {
          auto net = nets[static_cast<size_t>(accelerator.rank())];
          train(accelerator, net, data);
          EXPECT_TRUE(net->parameters()[0].is_cuda());
          testing::expect_near(testing::values_of(net->parameters()), expected, 1e-4);
        },
        quiet_options());
  }
}

TEST(RanksOnGpus, SmallBucketsAndAWireOfBf16TrainNearIt) {
  const testing::SmallData data(48);
  const auto expected = trained_alone(data);
  auto options = quiet_options();
  options.ddp.buckets = {.first_bytes = 1 << 10, .bytes = 1 << 10};
  const auto nets = nets_of(2, false), low = nets_of(2, false);
  const auto run = [&](const std::vector<torch::nn::Sequential>& all, double tolerance) {
    run_on_gpus(
        2,
        [&](Accelerator& accelerator) {
          auto net = all[static_cast<size_t>(accelerator.rank())];
          train(accelerator, net, data);
          testing::expect_near(testing::values_of(net->parameters()), expected, tolerance);
        },
        options);
  };
  run(nets, 1e-4);
  options.ddp.communication_dtype = at::kBFloat16;
  run(low, 2e-2);
}

TEST(RanksOnGpus, AStepDoesNotWaitForTheDevice) {
  const testing::SmallData data(48);
  const auto nets = nets_of(2, true);
  run_on_gpus(
      2,
      [&](Accelerator& accelerator) {
        auto net = nets[static_cast<size_t>(accelerator.rank())];
        torch::optim::AdamW adam(net->parameters(), 1e-3);
        auto [model, optimizer] = accelerator.prepare(net, adam);
        const auto x = share_of(data.x, accelerator), y = share_of(data.y, accelerator);
        const auto step = [&, &model = model, &optimizer = optimizer] {
          optimizer.zero_grad();
          accelerator.backward(F::cross_entropy(model(x), y));
          optimizer.step();
        };
        for (int i = 0; i < 3; ++i) step();
        accelerator.wait_for_everyone();
        // Counts are the process's: both ranks step meanwhile.
        EXPECT_EQ(testing::waits_of([&] {
                    step();
                    accelerator.wait_for_everyone();
                  }),
                  0);
      },
      quiet_options());
}

// Kernels of all ranks in a run of `steps` backwards of nets of linear layers, which are prepared or not. Counts are
// the process's, so a run is counted from before its ranks start until they have ended.
int64_t kernels_of_run(int num_layers, int steps, bool prepared, int num_buffers = 0) {
  std::vector<torch::nn::Sequential> nets;
  for (int i = 0; i < 2; ++i) {
    torch::nn::Sequential net;
    for (int layer = 0; layer < num_layers; ++layer) net->push_back(torch::nn::Linear(8, 8));
    for (int buffer = 0; buffer < num_buffers; ++buffer)
      net->register_buffer(text("buffer", buffer), torch::ones({3}, buffer % 2 == 0 ? at::kFloat : at::kLong));
    nets.push_back(net);
  }
  return testing::kernels_of([&] {
    run_on_gpus(
        2,
        [&](Accelerator& accelerator) {
          auto net = nets[static_cast<size_t>(accelerator.rank())];
          const auto x = torch::ones({4, 8}, accelerator.device());
          const auto repeat = [&](const auto& backward) {
            for (int i = 0; i < steps; ++i) {
              for (auto& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
              backward();
            }
          };
          if (prepared) {
            auto model = accelerator.prepare(net);
            repeat([&] { accelerator.backward(model(x).sum()); });
          } else {
            net->to(accelerator.device());
            repeat([&] { net->forward(x).sum().backward(); });
          }
        },
        quiet_options());
  });
}

// Kernels that the exchange adds to a backward, for each rank, once the first steps have made what is made once.
double kernels_of_exchange(int num_layers) {
  const auto of_four_steps = [&](bool prepared) {
    return static_cast<double>(kernels_of_run(num_layers, 7, prepared) - kernels_of_run(num_layers, 3, prepared));
  };
  return (of_four_steps(true) - of_four_steps(false)) / (4 * 2);
}

TEST(RanksOnGpus, GradientsOfABucketTakeOneKernelOfTheExchange) {
  EXPECT_EQ(kernels_of_exchange(4), kernels_of_exchange(12));
}

// A ResNet-50 has 160 of them, of two dtypes.
TEST(RanksOnGpus, BuffersTakeAsManyKernelsOfTheExchangeAsOneBuffer) {
  const auto of_four_steps = [](int num_buffers) {
    return kernels_of_run(2, 7, true, num_buffers) - kernels_of_run(2, 3, true, num_buffers);
  };
  const auto none = of_four_steps(0), few = of_four_steps(2), many = of_four_steps(40);

  EXPECT_GT(few, none);
  EXPECT_EQ(many, few);
}

// A model of some megabytes goes to the device through pinned pieces.
TEST(RanksOnGpus, SyncBatchNormIsConvertedBeforePrepareMovesTheModel) {
  const testing::SmallData data(48);
  const auto make = [&] {
    torch::manual_seed(4);
    return torch::nn::Sequential(torch::nn::Linear(data.x.size(1), 40'000), torch::nn::BatchNorm1d(40'000));
  };
  torch::nn::Sequential whole = make();
  whole->forward(data.x);
  std::vector<torch::nn::Sequential> nets = {make(), make()};
  run_on_gpus(
      2,
      [&](Accelerator& accelerator) {
        auto net = nets[static_cast<size_t>(accelerator.rank())];
        parallel::convert_sync_batchnorm(*net, accelerator.group());
        auto model = accelerator.prepare(net);
        accelerator.backward(model(share_of(data.x, accelerator)).square().mean());
        testing::expect_near(testing::values_of({net->buffers()[1]}), {whole->buffers()[1]}, 1e-4);
      },
      quiet_options());
}

TEST(RanksOnGpus, SyncBatchNormEqualsTheWholeBatch) {
  const testing::SmallData data(48);
  torch::nn::Sequential whole(torch::nn::BatchNorm1d(16));
  whole->forward(data.x).square().sum().backward();
  const auto expected = whole->buffers()[1].clone();
  run_on_gpus(
      2,
      [&](Accelerator& accelerator) {
        torch::nn::Sequential net(torch::nn::BatchNorm1d(16));
        net->to(accelerator.device());
        parallel::convert_sync_batchnorm(*net, accelerator.group());
        net->forward(share_of(data.x, accelerator)).square().sum().backward();
        testing::expect_near({net->buffers()[1].cpu()}, {expected}, 1e-4);
      },
      quiet_options());
}

TEST(RanksOnGpus, FsdpsCpuOffloadRestsOnTheHost) {
  for (const std::string strategy : {"FULL_SHARD", "SHARD_GRAD_OP"}) {
    AcceleratorOptions options = quiet_options();
    options.fsdp = plan::FsdpPlugin{.sharding_strategy = strategy, .cpu_offload = true};
    run_on_gpus(
        2,
        [&](Accelerator& accelerator) {
          const bool is_full = strategy == "FULL_SHARD";
          EXPECT_EQ(accelerator.options().shard.optimizer_offload.device, parallel::OffloadDevice::kCpu);
          EXPECT_EQ(accelerator.options().shard.parameter_offload.device,
                    is_full ? parallel::OffloadDevice::kCpu : parallel::OffloadDevice::kNone);
        },
        options);
  }
}

}  // namespace
}  // namespace hasten
