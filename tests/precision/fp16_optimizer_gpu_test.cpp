// Apex's Fp16Optimizer on a GPU: a CPU's values, and as many waits and kernels for many parameters as for few.
#include "hasten/precision/fp16_optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "support/device.h"

namespace hasten::precision {
namespace {

using testing::kGpu;

class Fp16OptimizerGpu : public testing::OnGpu {};

// Parameters in bf16, which the CPU computes with as well.
std::vector<at::Tensor> parameters_on(c10::Device device, int count) {
  auto generator = at::detail::createCPUGenerator(5);
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < count; ++i)
    parameters.push_back(at::randn({2, 3 + i % 4}, generator).to(device, at::kBFloat16).requires_grad_());
  return parameters;
}

at::Tensor loss_of(const std::vector<at::Tensor>& parameters) {
  at::Tensor sum = torch::zeros({}, parameters.front().options().dtype(at::kFloat));
  for (const auto& parameter : parameters) sum = sum + parameter.to(at::kFloat).square().sum();
  return sum;
}

struct Clipped {
  double norm;
  std::vector<at::Tensor> masters;
};

Clipped clipped_step_on(c10::Device device, double norm_type) {
  const auto parameters = parameters_on(device, 7);
  torch::optim::SGD sgd(parameters, 0.1);
  Fp16Optimizer optimizer(sgd);
  optimizer.backward(loss_of(parameters));
  const double norm = optimizer.clip_master_grads(0.5, norm_type);
  optimizer.step();
  return {norm, testing::values_of(optimizer.masters().all())};
}

TEST_F(Fp16OptimizerGpu, AClippedStepGivesTheCpusMasters) {
  for (const double norm_type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    const auto ours = clipped_step_on(kGpu, norm_type), expected = clipped_step_on(c10::kCPU, norm_type);

    EXPECT_NEAR(ours.norm, expected.norm, 1e-3 * expected.norm) << norm_type;
    testing::expect_near(ours.masters, expected.masters, 1e-4);
  }
}

TEST_F(Fp16OptimizerGpu, AnOverflowIsFound) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const auto parameters = parameters_on(kGpu, 7);
    torch::optim::SGD sgd(parameters, 0.1);
    Fp16Optimizer optimizer(sgd, {.dynamic_loss_scale = true});
    optimizer.backward(loss_of(parameters), /*update_master_grads=*/false);
    parameters[3].mutable_grad()[0][0] = value;

    optimizer.update_master_grads();

    EXPECT_TRUE(optimizer.overflow());
    EXPECT_EQ(optimizer.clip_master_grads(0.5), -1);
  }
}

int64_t waits_for(int count) {
  const auto parameters = parameters_on(kGpu, count);
  torch::optim::SGD sgd(parameters, 0.1);
  Fp16Optimizer optimizer(sgd, {.dynamic_loss_scale = true});
  optimizer.backward(loss_of(parameters), /*update_master_grads=*/false);
  return testing::waits_of([&] {
    optimizer.update_master_grads();
    optimizer.clip_master_grads(0.5);
  });
}

TEST_F(Fp16OptimizerGpu, TheHostWaitsAsOftenForManyParametersAsForFew) {
  EXPECT_EQ(waits_for(20), waits_for(2));
  EXPECT_LE(waits_for(20), 2);
}

}  // namespace
}  // namespace hasten::precision
