// Inputs of regions that wait on the host: gradients are the same bit for bit, and the device holds less.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/parallel/recompute/recompute.h"
#include "support/device.h"

namespace hasten::parallel {
namespace {

using testing::kGpu;
using testing::pretend::counts;

struct BlockImpl : torch::nn::Module {
  BlockImpl() : torch::nn::Module("Block") {
    one = register_module("one", torch::nn::Linear(64, 256));
    two = register_module("two", torch::nn::Linear(256, 64));
  }
  at::Tensor forward(const at::Tensor& x) { return x + two(torch::dropout(torch::gelu(one(x)), 0.1, is_training())); }
  torch::nn::Linear one{nullptr}, two{nullptr};
};
TORCH_MODULE(Block);

struct AwayRun {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;
  int64_t held = 0, peak = 0, waits = 0, sent = 0;
};

torch::nn::Sequential deep_net() {
  torch::manual_seed(5);
  torch::nn::Sequential net;
  for (int i = 0; i < 6; ++i) net->push_back(Block());
  net->to(kGpu);
  return net;
}

AwayRun run(const RecomputeOptions& options) {
  AwayRun result;
  auto net = deep_net();
  const auto x = torch::randn({128, 64}).to(kGpu);
  torch::manual_seed(9);
  const auto hook = recompute_hook(*net, options);
  counts()->slow_ms = 0;
  counts()->peak_bytes = counts()->bytes;
  const int64_t before = counts()->bytes[0], waits = counts()->waits, sent = recompute_counts().bytes_sent;
  {
    const auto entered = hook->enter(*net);
    result.loss = net->forward(x).square().mean();
  }
  result.held = counts()->bytes[0] - before;
  result.loss.backward();
  result.peak = counts()->peak_bytes[0] - before;
  result.waits = counts()->waits - waits;
  result.sent = recompute_counts().bytes_sent - sent;
  for (const auto& parameter : net->parameters()) result.gradients.push_back(parameter.grad().cpu());
  counts()->slow_ms = 20;
  return result;
}

TEST(RecomputeAway, GradientsAreTheSameAndTheDeviceHoldsLess) {
  const AwayRun here = run({.enabled = true}), away = run({.enabled = true, .offload = true});

  EXPECT_TRUE(here.loss.cpu().equal(away.loss.cpu()));
  ASSERT_EQ(here.gradients.size(), away.gradients.size());
  for (size_t i = 0; i < here.gradients.size(); ++i) EXPECT_TRUE(here.gradients[i].equal(away.gradients[i])) << i;
  EXPECT_EQ(here.sent, 0);
  // The inputs of the blocks but the first, which is the program's.
  EXPECT_EQ(away.sent, 5 * 128 * 64 * 4);
  // Between forward and backward; at the end of backward all gradients are there, which is the peak of so small a net.
  EXPECT_LE(away.held, here.held - 4 * 128 * 64 * 4);
  EXPECT_LE(away.peak, here.peak);
  EXPECT_EQ(away.waits, here.waits);
}

TEST(RecomputeAway, AnInputThatWasChangedInPlaceIsRefused) {
  auto net = deep_net();
  const auto x = torch::randn({128, 64}).to(kGpu);
  const auto hook = recompute_hook(*net, {.enabled = true, .offload = true});
  at::Tensor middle, loss;
  {
    const auto entered = hook->enter(*net);
    middle = net[0]->as<Block>()->forward(x);
    loss = net[1]->as<Block>()->forward(middle).square().mean();
  }

  {
    const at::NoGradGuard no_grad;
    middle.add_(1);
  }

  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(RecomputeAway, AGraphThatIsKeptGivesItsGradientsTwice) {
  auto net = deep_net();
  const auto x = torch::randn({128, 64}).to(kGpu);
  const auto hook = recompute_hook(*net, {.enabled = true, .offload = true});
  at::Tensor loss;
  {
    const auto entered = hook->enter(*net);
    loss = net->forward(x).square().mean();
  }

  const auto first = torch::autograd::grad({loss}, net->parameters(), {}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({loss}, net->parameters());

  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i])) << i;
}

}  // namespace
}  // namespace hasten::parallel
