// A tall net whose layers are a unit each, for tests of sharding on the pretend device.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "parallel/shard/trained.h"
#include "support/nccl_double.h"

namespace hasten::parallel::shard_testing {

inline constexpr int64_t kLayers = 16, kWidth = 128, kUnit = kWidth * kWidth + kWidth, kParameters = kLayers * kUnit;

struct TallImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  /// Called with the number of a layer and its output.
  std::function<void(int64_t layer, const at::Tensor& output)> after_layer;
  TallImpl() {
    for (int64_t i = 0; i < kLayers; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
  }
  at::Tensor forward(at::Tensor x) {
    for (int64_t i = 0; i < kLayers; ++i) {
      x = torch::tanh(layers[static_cast<size_t>(i)](x));
      if (after_layer) after_layer(i, x);
    }
    return x;
  }
};
TORCH_MODULE(Tall);

inline ShardOptions unit_a_layer(ShardStage stage) {
  ShardOptions options{.stage = stage};
  options.units = [](const torch::nn::Module& module) {
    std::vector<std::vector<std::string>> units;
    for (const auto& child : module.named_children()) units.push_back({child.key() + ".weight", child.key() + ".bias"});
    return units;
  };
  return options;
}

inline c10::Device device_of(int rank) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(rank)};
}

// The input has a gradient, so that backward reads every layer.
inline at::Tensor tall_loss(Trained<Tall>& t, double factor = 1) {
  const auto x = torch::full({4, kWidth}, factor, at::TensorOptions(t.device)).requires_grad_();
  return t.net->forward(x).square().mean();
}

inline void tall_step(Trained<Tall>& t) {
  t.optimizer->zero_grad();
  t.backward(tall_loss(t));
  t.step();
}

/// Runs `fn` on ranks that have a pretend device each, over the double of NCCL.
inline void run_on_devices(int world, const testing::RankFunction& fn, testing::RankOptions options = {}) {
  const testing::UsesNcclDouble with_double;
  options.check = false;
  run_ranks(
      world,
      [&](auto& process) {
        const int rank = process.group().rank();
        const c10::DeviceGuard guard(device_of(rank));
        fn(process);
        torch::cuda::synchronize(rank);
        process.group().barrier();
      },
      options);
}

/// Bytes that a rank sends in `fn`, as multiples of those of the net's parameters: the mean, since the double counts by
/// ranks of subgroups.
inline double wire_of(const comm::Group& group, const std::function<void()>& fn) {
  const auto sum = [&] {
    group.barrier();
    int64_t all = 0;
    for (int rank = 0; rank < group.world_size(); ++rank) all += testing::UsesNcclDouble::wire_bytes(rank);
    group.barrier();
    return all;
  };
  const int64_t before = sum();
  fn();
  return static_cast<double>(sum() - before) / (4 * kParameters * group.world_size());
}

}  // namespace hasten::parallel::shard_testing
