// Regions whose activations are computed again in backward: gradients bit for bit, and less memory.
#include "hasten/parallel/recompute/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/precision/autocast.h"
#include "support/folder.h"

namespace hasten::parallel {
namespace {

using ::testing::HasSubstr;
using testing::words_of;

// Gradients of the input and of all parameters, from the same seed.
template <class Forward>
std::vector<at::Tensor> gradients_of(const torch::nn::Module& module, const at::Tensor& input, const Forward& forward) {
  torch::manual_seed(11);
  const at::Tensor x = input.clone().requires_grad_(input.is_floating_point());
  for (const auto& parameter : module.parameters()) parameter.mutable_grad() = at::Tensor();
  forward(x).square().mean().backward();
  // The random state behind forward and backward is compared as well.
  std::vector<at::Tensor> all = {torch::rand({2})};
  if (x.requires_grad()) all.push_back(x.grad());
  for (const auto& parameter : module.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

template <class Layer>
void expect_same_bits(Layer layer, const at::Tensor& input) {
  const auto plain = gradients_of(*layer, input, [&](const at::Tensor& x) { return layer->forward(x); });
  int runs = 0;
  const auto again = gradients_of(*layer, input, [&](const at::Tensor& x) {
    return recompute(
        [&runs, layer](const at::Tensor& y) mutable {
          ++runs;
          return layer->forward(y);
        },
        x);
  });
  EXPECT_EQ(runs, 2);
  ASSERT_EQ(plain.size(), again.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], again[i])) << layer->name() << ' ' << i;
}

TEST(Recompute, GivesTheBitsOfAPlainForward) {
  torch::manual_seed(1);
  namespace nn = torch::nn;
  expect_same_bits(nn::Sequential(nn::Linear(8, 16), nn::Tanh(), nn::Linear(16, 8), nn::GELU()), torch::randn({4, 8}));
  expect_same_bits(nn::Sequential(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::MaxPool2d(2)),
                   torch::randn({2, 3, 8, 8}));
  expect_same_bits(nn::Sequential(nn::Linear(8, 16), nn::Dropout(0.5), nn::Linear(16, 8), nn::Dropout(0.3)),
                   torch::randn({4, 8}));
  expect_same_bits(nn::Sequential(nn::Embedding(10, 8), nn::LayerNorm(nn::LayerNormOptions({8})), nn::SiLU()),
                   torch::randint(10, {4, 3}));
  const nn::TransformerEncoderLayer transformer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
  expect_same_bits(transformer, torch::randn({5, 2, 8}));
}

TEST(Recompute, FollowsTheAutocastStateOfItsForward) {
  torch::manual_seed(2);
  const torch::nn::Sequential layer(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 8));
  const at::Tensor input = torch::randn({4, 8});
  const auto under_autocast = [&](const auto& forward) {
    return gradients_of(*layer, input, [&](const at::Tensor& x) {
      const precision::Autocast scope(at::kCPU, {.dtype = at::kBFloat16});
      return forward(x);
    });
  };
  const auto plain = under_autocast([&](const at::Tensor& x) { return torch::nn::Sequential(layer)->forward(x); });
  const auto again = under_autocast([&](const at::Tensor& x) {
    return recompute([layer](const at::Tensor& y) { return torch::nn::Sequential(layer)->forward(y); }, x);
  });
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], again[i])) << i;
}

// What a graph keeps alive, in bytes of tensors that a region made.
TEST(Recompute, KeepsNoActivations) {
  torch::nn::Linear layer(64, 64);
  const auto kept = [&](bool again) {
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
    const auto forward = [&](at::Tensor x) {
      for (int i = 0; i < 8; ++i) {
        x = torch::tanh(layer(x));
        made.push_back(x.storage().getWeakStorageImpl());
      }
      return x.sum();
    };
    const at::Tensor loss = again ? recompute([&](const at::Tensor& x) { return forward(x); }, torch::ones({4, 64}))
                                  : forward(torch::ones({4, 64}));
    return std::count_if(made.begin(), made.end(), [](const auto& storage) { return !storage.expired(); });
  };

  EXPECT_EQ(kept(false), 8);
  EXPECT_EQ(kept(true), 0);
}

TEST(Recompute, Nests) {
  torch::manual_seed(3);
  torch::nn::Linear first(8, 8), second(8, 8);
  torch::nn::Sequential both(first, second);
  const at::Tensor input = torch::randn({4, 8});
  const auto block = [&](bool inner, const at::Tensor& x) {
    const at::Tensor y = torch::dropout(torch::tanh(first(x)), 0.4, true);
    auto rest = [second](const at::Tensor& z) mutable { return torch::sigmoid(second(z)).mul(z); };
    return torch::tanh(inner ? recompute(rest, y) : rest(y));
  };
  const auto plain = gradients_of(*both, input, [&](const at::Tensor& x) { return block(false, x); });
  const auto again = gradients_of(*both, input, [&](const at::Tensor& x) {
    return recompute([&](const at::Tensor& y) { return block(true, y); }, x);
  });
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], again[i])) << i;
}

TEST(Recompute, ServesSeveralBackwardsAndSecondDerivatives) {
  torch::manual_seed(4);
  torch::nn::Linear layer(4, 4);
  const at::Tensor x = torch::randn({2, 4});
  auto curved = [layer](const at::Tensor& y) mutable { return torch::tanh(layer(y)).pow(3).sum(); };
  const auto second = [&](const at::Tensor& loss) {
    const auto gradient = torch::autograd::grad({loss}, {layer->weight}, {}, true, true)[0];
    return torch::autograd::grad({gradient.square().sum()}, {layer->weight})[0];
  };
  EXPECT_TRUE(at::equal(second(curved(x)), second(recompute(curved, x))));

  const at::Tensor loss = recompute(curved, x);
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = layer->weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::equal(layer->weight.grad(), 2 * once));
}

TEST(Recompute, ARegionThatComputesSomethingElseIsNamed) {
  torch::nn::Linear layer(4, 4);
  int runs = 0;
  const auto changing = [&runs, layer](const at::Tensor& x) mutable {
    return ++runs > 1 ? layer(x).tanh().exp().sum() : layer(x).tanh().sum();
  };
  const at::Tensor other = recompute(changing, torch::ones({2, 4}));
  EXPECT_THAT(words_of<UsageError>([&] { other.backward(); }), HasSubstr("compute the same again"));

  const at::Tensor stale = recompute([layer](const at::Tensor& x) mutable { return layer(x).tanh().sum(); },
                                     torch::ones({2, 4}).requires_grad_());
  {
    const torch::NoGradGuard no_grad;
    layer->weight.add_(1);
  }
  EXPECT_THAT(words_of<UsageError>([&] { stale.backward(); }), HasSubstr("was changed in place"));
}

TEST(Recompute, WithoutGradientsRunsOnce) {
  const torch::NoGradGuard no_grad;
  int runs = 0;
  const at::Tensor y = recompute(
      [&runs](const at::Tensor& x) {
        ++runs;
        return x * 2;
      },
      torch::ones({2}));
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(at::equal(y, torch::full({2}, 2.0)));
}

}  // namespace
}  // namespace hasten::parallel
