// A model whose parts lie on two devices of one process, alone and under Ddp (torch's tutorials on model parallelism).
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <hasten/models/resnet.h>
#include <torch/torch.h>

#include "support/device_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

namespace F = torch::nn::functional;
using testing::quiet_options;

struct Devices {
  c10::Device first = c10::kCPU, second = c10::kCPU;
};

// The ToyModel of torch's tutorial: each linear on a device of its own.
struct ToyModelImpl : torch::nn::Module {
  explicit ToyModelImpl(const Devices& on) : devices(on) {
    first = register_module("first", torch::nn::Linear(6, 10));
    second = register_module("second", torch::nn::Linear(10, 3));
    first->to(on.first);
    second->to(on.second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x.to(devices.first))).to(devices.second)); }
  Devices devices;
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(ToyModel);

// A ResNet in two parts: stem and a narrow stage, then a strided one and the scores.
struct TwoPartResNetImpl : torch::nn::Module {
  explicit TwoPartResNetImpl(const Devices& on) : devices(on) {
    const models::ResNetOptions options;
    front =
        register_module("front", torch::nn::Sequential(models::padded_conv(3, 8, 3), torch::nn::BatchNorm2d(8),
                                                       torch::nn::ReLU(), models::ResNetBlock(8, 8, 1, 1, options)));
    back = register_module(
        "back", torch::nn::Sequential(models::ResNetBlock(8, 16, 2, 1, options), torch::nn::AdaptiveAvgPool2d(1),
                                      torch::nn::Flatten(), torch::nn::Linear(16, 3)));
    front->to(on.first);
    back->to(on.second);
  }
  at::Tensor forward(const at::Tensor& x) {
    return back->forward(front->forward(x.to(devices.first)).to(devices.second));
  }
  Devices devices;
  torch::nn::Sequential front{nullptr}, back{nullptr};
};
TORCH_MODULE(TwoPartResNet);

// Four steps on this rank's share of the rows.
template <class Net>
void train(Accelerator& accelerator, Net net, const at::Tensor& x, const at::Tensor& y) {
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto model = accelerator.prepare_model(net, /*device_placement=*/false);
  auto optimizer = accelerator.prepare(sgd);
  const int64_t rows = x.size(0) / accelerator.world_size();
  for (int step = 0; step < 4; ++step) {
    const auto share = [&](const at::Tensor& all) { return all.narrow(0, rows * accelerator.rank(), rows); };
    const at::Tensor scores = model(share(x));
    optimizer.zero_grad();
    accelerator.backward(F::cross_entropy(scores, share(y).to(scores.device())));
    optimizer.step();
  }
}

template <class Net>
Net made(const Devices& on) {
  torch::manual_seed(9);
  Net net(on);
  net->eval();  // shares of a batch have other statistics than the whole
  return net;
}

template <class Net>
void expect_the_values_of_one_device(const at::Tensor& x) {
  const at::Tensor y = torch::arange(x.size(0)).remainder(3);
  auto expected = made<Net>({});
  Accelerator alone(testing::alone_on(c10::kCPU), quiet_options());
  train(alone, expected, x, y);
  const auto wanted = testing::values_of(expected->parameters());
  const auto on_devices = [](int rank) {
    const auto index = static_cast<c10::DeviceIndex>(2 * rank);
    return Devices{{c10::kCUDA, index}, {c10::kCUDA, static_cast<c10::DeviceIndex>(index + 1)}};
  };

  for (const bool on_cpu : {true, false}) {
    auto whole = made<Net>(on_cpu ? Devices{} : on_devices(0));
    train(alone, whole, x, y);
    testing::expect_near(testing::values_of(whole->parameters()), wanted, 1e-4);

    std::vector<Net> nets = {made<Net>(on_cpu ? Devices{} : on_devices(0)),
                             made<Net>(on_cpu ? Devices{} : on_devices(1))};
    testing::run_ranks(2, [&](process::Process& process) {
      Accelerator accelerator(process, quiet_options());
      auto net = nets[static_cast<size_t>(process.rank())];
      train(accelerator, net, x, y);
      testing::expect_near(testing::values_of(net->parameters()), wanted, 1e-4);
      EXPECT_EQ(net->parameters().back().device(), net->devices.second);
    });
  }
}

TEST(TwoDevices, TheToyModelTrainsAsOnOneAloneAndUnderDdp) {
  torch::manual_seed(2);
  expect_the_values_of_one_device<ToyModel>(torch::randn({12, 6}));
}

TEST(TwoDevices, ATwoPartResNetTrainsAsOnOneAloneAndUnderDdp) {
  torch::manual_seed(2);
  expect_the_values_of_one_device<TwoPartResNet>(torch::randn({8, 3, 10, 10}));
}

}  // namespace
}  // namespace hasten
