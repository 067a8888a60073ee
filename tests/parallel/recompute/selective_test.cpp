// Regions that drop what chosen operators make, and keep all else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/parallel/model/prepared_model.h"
#include "hasten/parallel/recompute/recompute.h"

namespace hasten::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Attention whose scores are a value of the program's, or libtorch's own.
struct SelectiveAttentionImpl : torch::nn::Module {
  explicit SelectiveAttentionImpl(bool is_fused, double drop) : fused(is_fused), dropped(drop) {
    register_module("qkv", qkv);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(x).chunk(3, -1);
    if (fused)
      return x +
             out(at::scaled_dot_product_attention(parts[0].unsqueeze(1), parts[1].unsqueeze(1), parts[2].unsqueeze(1))
                     .squeeze(1));
    const at::Tensor scores = at::matmul(parts[0], parts[1].transpose(-1, -2)) / 2.0;
    const at::Tensor mask = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
    const at::Tensor shares = at::dropout(at::softmax(scores.masked_fill(mask, -INFINITY), -1), dropped, is_training());
    return x + out(torch::gelu(at::matmul(shares, parts[2])));
  }
  torch::nn::Linear qkv{8, 24}, out{8, 8};
  bool fused;
  double dropped;
};
TORCH_MODULE(SelectiveAttention);

struct SelectiveNetImpl : torch::nn::Module {
  SelectiveNetImpl(bool fused, double drop) {
    for (int i = 0; i < 3; ++i) layers->push_back(SelectiveAttention(fused, drop));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<SelectiveAttention>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(SelectiveNet);

struct SelectiveRun {
  std::vector<at::Tensor> gradients;
  RecomputeCounts counts = {};
};

SelectiveRun run_selective(SelectiveNet& net, const std::shared_ptr<ForwardHook>& hook) {
  const auto before = recompute_counts();
  torch::manual_seed(7);
  net->zero_grad();
  const at::Tensor x = at::linspace(-1, 1, 2 * 5 * 8).view({2, 5, 8}).requires_grad_();
  {
    auto entered = hook ? hook->enter(*net) : nullptr;
    const at::Tensor loss = net->forward(x).pow(2).sum();
    entered.reset();
    loss.backward();
  }
  SelectiveRun done;
  done.gradients.push_back(x.grad().clone());
  for (const auto& parameter : net->parameters()) done.gradients.push_back(parameter.grad().clone());
  const auto now = recompute_counts();
  done.counts = {now.dropped - before.dropped, now.kept - before.kept, now.replayed - before.replayed, 0};
  return done;
}

void expect_equal(const SelectiveRun& actual, const SelectiveRun& expected) {
  for (size_t i = 0; i < expected.gradients.size(); ++i)
    EXPECT_TRUE(actual.gradients[i].equal(expected.gradients[i])) << i;
}

TEST(SelectiveRecompute, DropsSoftmaxAndDropoutAloneWithEqualBits) {
  torch::manual_seed(1);
  SelectiveNet net(false, 0.3);
  const auto expected = run_selective(net, nullptr);
  const auto all = run_selective(net, recompute_hook(*net, {}));
  const auto selective = run_selective(net, recompute_hook(*net, {.operators = attention_operators()}));

  expect_equal(all, expected);
  expect_equal(selective, expected);
  EXPECT_EQ(selective.counts.dropped, 3 * 3) << "of each layer softmax's result, the dropout's mask and its result";
  EXPECT_LT(selective.counts.dropped, all.counts.dropped);
  EXPECT_GT(selective.counts.kept, all.counts.kept);
  EXPECT_LT(selective.counts.replayed, all.counts.replayed) << "products and projections are not run again";
}

TEST(SelectiveRecompute, OfOneOperatorDropsItsResults) {
  torch::manual_seed(1);
  SelectiveNet net(false, 0.0);
  const auto expected = run_selective(net, nullptr);
  const auto selective = run_selective(net, recompute_hook(*net, {.operators = {"gelu"}}));

  expect_equal(selective, expected);
  EXPECT_EQ(selective.counts.dropped, 3) << "the input of the product behind it";
}

TEST(SelectiveRecompute, WithFusedAttentionDropsNothingAndSaysItOnce) {
  torch::manual_seed(1);
  SelectiveNet net(true, 0.0);
  const auto expected = run_selective(net, nullptr);
  const auto hook = recompute_hook(*net, {.operators = attention_operators()});

  ::testing::internal::CaptureStderr();
  const auto first = run_selective(net, hook);
  run_selective(net, hook);
  run_selective(net, hook);
  const std::string log = ::testing::internal::GetCapturedStderr();

  expect_equal(first, expected);
  EXPECT_EQ(first.counts.dropped, 0);
  EXPECT_EQ(first.counts.replayed, 0);
  const auto found = log.find("no region calls any of RecomputeOptions::operators");
  EXPECT_NE(found, std::string::npos) << log;
  EXPECT_EQ(log.find("no region calls any", found + 1), std::string::npos) << log;
}

TEST(SelectiveRecompute, OfUnknownOperatorsIsRefused) {
  SelectiveNet net(false, 0.0);
  EXPECT_THAT(
      [&] { recompute_hook(*net, {.operators = {"softmaxx"}}); },
      ThrowsMessage<UsageError>(HasSubstr("has 'softmaxx', which is no operator of libtorch, did you mean 'softmax'")));
}

}  // namespace
}  // namespace hasten::parallel
