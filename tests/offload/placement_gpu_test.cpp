// Models made on a GPU, and device maps that name one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/load/empty.h"
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

}  // namespace
}  // namespace hasten::offload
