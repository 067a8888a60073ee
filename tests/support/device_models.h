// A small net, its data and options, for tests that train on a GPU (support/device.h).
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "hasten/accelerator/options.h"
#include "support/device.h"

namespace hasten::testing {

/// Options that leave the test program as it is.
inline AcceleratorOptions quiet_options(std::optional<Precision> precision = {}) {
  AcceleratorOptions options{.tune_allocator = false, .change_process = false};
  options.mixed_precision = precision;
  return options;
}

/// A net of two layers, equal at each call; with `norm`, batch norm between them.
inline torch::nn::Sequential small_net(bool norm = false, int64_t width = 32) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(16, width));
  if (norm) net->push_back(torch::nn::BatchNorm1d(width));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(width, 10));
  return net;
}

/// Rows and classes for it, equal at each call.
struct SmallData {
  at::Tensor x, y;
  explicit SmallData(int64_t num_rows = 64) {
    auto generator = at::detail::createCPUGenerator(3);
    x = at::randn({num_rows, 16}, generator);
    y = at::randint(10, {num_rows}, generator, at::kLong);
  }
};

}  // namespace hasten::testing
