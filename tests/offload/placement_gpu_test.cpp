// Models made on a GPU, and device maps that name one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/load/empty.h"
#include "hasten/offload/units/move_module.h"
#include "support/device.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

using testing::kGpu;

class PlacementGpu : public testing::OnGpu {};

TEST_F(PlacementGpu, InitOnDeviceMakesParametersThere) {
  auto net = init_on_device(kGpu, [] { return torch::nn::Linear(4, 4); });
  EXPECT_TRUE(net->weight.is_cuda());
}

TEST_F(PlacementGpu, ADeviceMapWithAGpuPlacesTheModelOrIsRefusedByItsName) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4));
  try {
    auto model = dispatch_model(net, DeviceMap{{"", 0}});
    EXPECT_TRUE(net->parameters()[0].is_cuda());
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("GPU"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("has not"), std::string::npos) << error.what();
  }
}

// A copy from plain memory makes the host wait for each tensor, and takes a fraction of the bus.
TEST_F(PlacementGpu, AModuleGoesToTheDeviceThroughPinnedPieces) {
  torch::nn::Sequential net(torch::nn::Linear(1024, 700), torch::nn::BatchNorm1d(700), torch::nn::Linear(700, 900));
  net->register_parameter("tied", net->ptr<torch::nn::LinearImpl>(2)->weight);
  const auto weight = net->ptr<torch::nn::LinearImpl>(0)->weight;
  const auto before = testing::values_of(net->parameters()), buffers = testing::values_of(net->buffers());

  const auto* counts = testing::pretend::counts();
  const int64_t late = counts == nullptr ? 0 : counts->late_copies;

  move_module(*net, kGpu);

  if (counts != nullptr) {  // those from pinned memory are left for later
    EXPECT_GE(counts->late_copies - late, static_cast<int64_t>(before.size()));
  }
  EXPECT_TRUE(weight.is_same(net->ptr<torch::nn::LinearImpl>(0)->weight));
  for (const auto& tensor : net->parameters()) EXPECT_EQ(tensor.device(), kGpu);
  for (const auto& tensor : net->buffers()) EXPECT_EQ(tensor.device(), kGpu);
  testing::expect_near(testing::values_of(net->parameters()), before, 0);
  testing::expect_near(testing::values_of(net->buffers()), buffers, 0);
  net->ptr<torch::nn::LinearImpl>(0)->forward(torch::ones({2, 1024}, kGpu)).sum().backward();
  EXPECT_EQ(weight.grad().device(), kGpu);
  move_module(*net, at::kCPU);
  EXPECT_TRUE(weight.is_cpu());
}

}  // namespace
}  // namespace hasten::offload
