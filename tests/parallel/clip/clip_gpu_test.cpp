// Norms and clipping of gradients on a GPU: values of the CPU's, a few kernels for any number of parameters, one wait.
#include "hasten/parallel/clip/clip.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "hasten/parallel/clip/clip_async.h"
#include "hasten/parallel/shard/prepare_sharding.h"
#include "support/device.h"

namespace hasten::parallel {
namespace {

using testing::kGpu;

class ClipGpu : public testing::OnGpu {};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Parameters of several dtypes with gradients, equal for each device.
std::vector<at::Tensor> parameters_on(c10::Device device, int count = 20, bool mixed = true) {
  auto generator = at::detail::createCPUGenerator(5);
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < count; ++i) {
    const auto dtype = mixed && i % 3 == 1 ? at::kBFloat16 : mixed && i % 3 == 2 ? at::kDouble : at::kFloat;
    const auto gradient = at::randn({i % 5 * 7, 3}, generator).to(dtype);
    parameters.push_back(torch::zeros_like(gradient).to(device).requires_grad_());
    parameters.back().mutable_grad() = gradient.to(device);
  }
  return parameters;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad().to(at::kFloat));
  return testing::values_of(gradients);
}

TEST_F(ClipGpu, NormsAreThoseOfTheCpu) {
  for (const double type : {1.0, 2.0, 3.0, kInfinity}) {
    const auto there = gradient_norm(parameters_on(kGpu), {.norm_type = type});
    const auto here = gradient_norm(parameters_on(c10::kCPU), {.norm_type = type});
    EXPECT_NEAR(there.norm, here.norm, 1e-3 * here.norm) << type;
    EXPECT_TRUE(there.finite);
  }
}

TEST_F(ClipGpu, AGradientThatIsNotFiniteIsFound) {
  for (const double value : {kInfinity, std::nan("")}) {
    auto parameters = parameters_on(kGpu);
    parameters[3].mutable_grad()[0][0] = value;
    EXPECT_FALSE(gradient_norm(parameters).finite);
    EXPECT_FALSE(gradient_norm(parameters, {.norm_type = kInfinity}).finite);
  }
}

TEST_F(ClipGpu, ClippingGivesTorchsGradients) {
  for (const double type : {1.0, 2.0, kInfinity}) {
    const auto ours = parameters_on(kGpu, 20, false), theirs = parameters_on(c10::kCPU, 20, false);
    const double norm = clip_grad_norm_(nullptr, ours, 0.5, type);
    // libtorch has no largest element of an empty gradient.
    std::vector<at::Tensor> filled;
    std::copy_if(theirs.begin(), theirs.end(), std::back_inserter(filled), [](const auto& p) { return p.numel() > 0; });
    const double expected = torch::nn::utils::clip_grad_norm_(filled, 0.5, type);
    EXPECT_NEAR(norm, expected, 1e-4 * expected);
    testing::expect_near(gradients_of(ours), gradients_of(theirs), 1e-5);
  }
}

TEST_F(ClipGpu, AsyncClippingGivesTheCpusGradients) {
  const auto ours = parameters_on(kGpu), theirs = parameters_on(c10::kCPU);
  const auto norm = clip_gradients_async_(ours, 0.5), expected = clip_gradients_async_(theirs, 0.5);
  EXPECT_TRUE(norm.is_cuda());
  EXPECT_NEAR(norm.item<double>(), expected.item<double>(), 1e-3);
  testing::expect_near(gradients_of(ours), gradients_of(theirs), 2e-2);
}

TEST_F(ClipGpu, TheHostWaitsOnceForAnyNumberOfParameters) {
  const auto parameters = parameters_on(kGpu, 20, false);
  EXPECT_LE(testing::waits_of([&] { gradient_norm(parameters); }), 1);
  EXPECT_LE(testing::waits_of([&] { gradient_norm(parameters, {.norm_type = kInfinity}); }), 1);
  EXPECT_LE(testing::waits_of([&] { clip_grad_norm_(nullptr, parameters, 0.5, 2.0); }), 1);
  EXPECT_EQ(testing::waits_of([&] { clip_gradients_async_(parameters, 0.5); }), 0);
}

TEST_F(ClipGpu, TheNumberOfKernelsDoesNotGrowWithTheParameters) {
  if (!testing::is_pretend()) GTEST_SKIP() << "a GPU does not count its kernels";
  const auto few = parameters_on(kGpu, 10, false), many = parameters_on(kGpu, 100, false);
  const auto kernels = [](const auto& fn) { return testing::kernels_of(fn); };
  EXPECT_EQ(kernels([&] { gradient_norm(few); }), kernels([&] { gradient_norm(many); }));
  EXPECT_EQ(kernels([&] { clip_grad_norm_(nullptr, few, 0.5, 2.0); }),
            kernels([&] { clip_grad_norm_(nullptr, many, 0.5, 2.0); }));
  EXPECT_EQ(kernels([&] { clip_gradients_async_(few, 0.5); }), kernels([&] { clip_gradients_async_(many, 0.5); }));
}

}  // namespace
}  // namespace hasten::parallel
