// Stripes that the CPU steps for a device (ZeRO-Offload): what goes to the device, when, and which part stays there.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "parallel/shard/device_nets.h"
#include "support/device.h"
#include "support/folder.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using testing::pretend::counts;

ShardOptions stepped_on_host(const std::string& param_dtype = "") {
  auto options = unit_a_layer(ShardStage::kParameters);
  options.optimizer_offload.device = OffloadDevice::kCpu;
  options.param_dtype = param_dtype;
  return options;
}

// Autocast of one thread, without the cache that casts under a mutex of the process.
class InBf16 {
 public:
  InBf16() : cached_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~InBf16() {
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    at::autocast::set_autocast_cache_enabled(cached_);
  }

 private:
  bool cached_;
};

void step_in(Trained<Tall>& t, bool low) {
  t.optimizer->zero_grad();
  at::Tensor loss;
  {
    std::optional<InBf16> scope;
    if (low) scope.emplace();
    loss = tall_loss(t);
  }
  t.backward(loss);
  t.step();
}

// Bytes that all ranks together take to their devices in a step, an element of the net.
double bytes_to_device(const ShardOptions& options, bool low) {
  double found = 0;
  run_on_devices(2, [&](auto& process) {
    Trained<Tall> t(process.group(), options, adamw, device_of(process.rank()));
    for (int i = 0; i < 2; ++i) step_in(t, low);
    process.group().barrier();
    const int64_t before = counts()->to_device_bytes;
    process.group().barrier();
    step_in(t, low);
    torch::cuda::synchronize(process.rank());
    process.group().barrier();
    if (process.rank() == 0) found = static_cast<double>(counts()->to_device_bytes - before) / kParameters;
  });
  return found;
}

TEST(DeviceOffload, WhatTheCpuHasSteppedComesInTheLowerPrecision) {
  EXPECT_NEAR(bytes_to_device(stepped_on_host(), false), 4, 0.1);
  EXPECT_NEAR(bytes_to_device(stepped_on_host("bfloat16"), true), 2, 0.1);
  auto with_parameters = stepped_on_host("bfloat16");
  with_parameters.parameter_offload.device = OffloadDevice::kCpu;
  // Each fill takes the stripe: once in forward, and in backward again but for the two units that are still there.
  EXPECT_NEAR(bytes_to_device(with_parameters, true), 2 * (2 - 2.0 / kLayers), 0.1);
}

TEST(DeviceOffload, ATileGoesToTheDeviceBeforeTheNextIsStepped) {
  run_on_devices(2, [](auto& process) {
    auto options = stepped_on_host();
    options.optimizer_offload.tile_numel = kUnit;  // two stripes of two ranks
    Trained<Tall> t(process.group(), options, adamw, device_of(process.rank()));
    tall_step(t);
    t.optimizer->zero_grad();
    t.backward(tall_loss(t));
    process.group().barrier();
    const int64_t begin = counts()->to_device_bytes;
    std::vector<int64_t> sent;
    t.sharding->step(*t.optimizer, [&] {
      sent.push_back(counts()->to_device_bytes - begin);
      return optim::optimizer_step(*t.optimizer);
    });
    // What the device steps itself, which is nothing, then two units a tile.
    ASSERT_EQ(sent.size(), 1 + kLayers / 2);
    for (size_t tile = 2; tile < sent.size(); ++tile) EXPECT_GE(sent[tile], sent[tile - 1] + 4 * kUnit) << tile;
  });
}

using DeviceOffloadInFolder = testing::InFolder;

TEST_F(DeviceOffloadInFolder, StateInFilesDoesSoAsWell) {
  run_on_devices(2, [&](auto& process) {
    auto options = stepped_on_host();
    options.optimizer_offload = {.device = OffloadDevice::kFile, .path = path("state"), .tile_numel = kUnit};
    Trained<Tall> t(process.group(), options, adamw, device_of(process.rank()));
    tall_step(t);
    t.optimizer->zero_grad();
    t.backward(tall_loss(t));
    process.group().barrier();
    const int64_t begin = counts()->to_device_bytes;
    std::vector<int64_t> sent;
    t.sharding->step(*t.optimizer, [&] {
      sent.push_back(counts()->to_device_bytes - begin);
      return optim::optimizer_step(*t.optimizer);
    });
    ASSERT_GE(sent.size(), kLayers / 2);
    for (size_t tile = 2; tile < sent.size(); ++tile) EXPECT_GT(sent[tile], sent[tile - 1]) << tile;
  });
}

// Programs may read and write the exact form, which comes from the CPU.
TEST(DeviceOffload, ReadsAndWritesOfTheExactFormAreThoseOfTheMasters) {
  run_on_devices(2, [](auto& process) {
    for (const bool parameters : {false, true}) {
      auto options = stepped_on_host("bfloat16");
      if (parameters) options.parameter_offload.device = OffloadDevice::kCpu;
      Trained<Tall> t(process.group(), options, adamw, device_of(process.rank())),
          exact(process.group(), unit_a_layer(ShardStage::kParameters), adamw, device_of(process.rank()));
      for (auto* each : {&t, &exact}) {
        for (int i = 0; i < 2; ++i) tall_step(*each);
        {
          const at::NoGradGuard no_grad;
          each->net->layers[3]->weight.mul_(1.001);
        }
        each->net->layers[5]->weight.set_data(at::full({kWidth, kWidth}, 1.0 / 300).to(each->device));
        each->optimizer->zero_grad();
        each->backward(tall_loss(*each));
        each->step();
      }
      const auto a = t.parameters(), b = exact.parameters();
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_LE((a[i] - b[i]).abs().max().template item<float>(), 1e-5) << i << ", parameters there " << parameters;
      // The low form follows what was written.
      const InBf16 low;
      const at::NoGradGuard no_grad;
      t.net->layers[2]->weight.fill_(1.0 / 3);
      const auto x = torch::ones({1, kWidth}, at::TensorOptions(t.device));
      const auto y = torch::linear(x, t.net->layers[2]->weight);
      EXPECT_NEAR(y[0][0].template item<float>(), kWidth / 3.0, 0.5);
    }
  });
}

TEST(DeviceOffload, ARatioLeavesTheRestOfTheStateOnTheDevice) {
  run_on_devices(2, [](auto& process) {
    for (const double ratio : {0.0, 0.5, 1.0}) {
      auto options = stepped_on_host();
      options.optimizer_offload.ratio = ratio;
      Trained<Tall> t(process.group(), options, adamw, device_of(process.rank())),
          exact(process.group(), unit_a_layer(ShardStage::kParameters), adamw, device_of(process.rank()));
      for (auto* each : {&t, &exact}) {
        for (int i = 0; i < 3; ++i) tall_step(*each);
      }
      const auto a = t.parameters(), b = exact.parameters();
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_TRUE(at::allclose(a[i], b[i], 1e-5, 1e-5)) << i << ", ratio " << ratio;
      int64_t there = 0, all = 0;
      for (const auto& piece : t.sharding->sharded_state(*t.optimizer)) {
        all += piece.tensor.numel();
        if (piece.tensor.is_cpu()) there += piece.tensor.numel();
      }
      EXPECT_NEAR(static_cast<double>(there) / static_cast<double>(all), ratio, 0.01);
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
