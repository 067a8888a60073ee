// Recomputing on a GPU: a replay draws the numbers of the forward, whatever draws them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/parallel/recompute/recompute.h"
#include "hasten/precision/autocast.h"
#include "support/device.h"

namespace hasten::parallel {
namespace {

using testing::kGpu;

class RecomputeGpu : public testing::OnGpu {};

struct DropLayerImpl : torch::nn::Module {
  DropLayerImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto q = x.view({x.size(0), x.size(1), 4, 16}).transpose(1, 2);
    const auto y = torch::scaled_dot_product_attention(q, q, q, {}, 0.1).transpose(1, 2).reshape(x.sizes());
    const auto kept = torch::rand({x.size(0), 1, 1}, x.options()).gt(0.2);  // drop path
    return x + torch::dropout(b(torch::gelu(a(y))), 0.1, is_training()) * kept;
  }
  torch::nn::Linear a{64, 128}, b{128, 64};
};
TORCH_MODULE(DropLayer);

std::vector<at::Tensor> gradients(bool again, std::optional<at::ScalarType> dtype) {
  torch::manual_seed(7);
  std::vector<DropLayer> layers(3);
  for (auto& layer : layers) layer->to(kGpu);
  at::Tensor x = torch::randn({4, 16, 64}, kGpu);
  {
    std::optional<precision::Autocast> scope;
    if (dtype) scope.emplace(c10::kCUDA, precision::AutocastOptions{.dtype = *dtype});
    for (auto& layer : layers) x = again ? recompute(layer, x) : layer(x);
  }
  torch::randn({3}, kGpu);
  x.square().mean().backward();
  std::vector<at::Tensor> all;
  for (auto& layer : layers) {
    for (auto& parameter : layer->parameters()) all.push_back(parameter.grad());
  }
  return testing::values_of(all);
}

TEST_F(RecomputeGpu, DropoutDropPathAndAttentionDrawTheSameNumbersAgain) {
  testing::expect_near(gradients(true, {}), gradients(false, {}), 1e-6);
}

TEST_F(RecomputeGpu, TheSameHoldsUnderBf16Autocast) {
  testing::expect_near(gradients(true, at::kBFloat16), gradients(false, at::kBFloat16), 1e-3);
}

TEST_F(RecomputeGpu, BatchNormDoesNotCountABatchTwice) {
  torch::nn::Sequential net(torch::nn::Linear(16, 16), torch::nn::BatchNorm1d(16), torch::nn::ReLU());
  net->to(kGpu);
  const auto x = torch::randn({8, 16}, kGpu).requires_grad_();
  recompute([&](const at::Tensor& in) { return net->forward(in); }, x).sum().backward();
  EXPECT_EQ(net->buffers()[2].item<int64_t>(), 1);
}

}  // namespace
}  // namespace hasten::parallel
