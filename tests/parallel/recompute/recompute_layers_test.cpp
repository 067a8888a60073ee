// Members of Sequentials that are computed again: names and numbers stay.
#include "hasten/parallel/recompute/recompute_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace hasten::parallel {
namespace {

struct DroppingLayerImpl : torch::nn::Module {
  DroppingLayerImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::dropout(torch::tanh(first(x)), 0.4, is_training())); }
  torch::nn::Linear first{8, 16}, second{16, 8};
};
TORCH_MODULE(DroppingLayer);

torch::nn::Sequential dropping_net() {
  namespace nn = torch::nn;
  torch::manual_seed(6);
  return nn::Sequential(nn::Linear(4, 8), DroppingLayer(), DroppingLayer(), nn::ReLU(), nn::Linear(8, 2));
}

std::vector<at::Tensor> layer_gradients(torch::nn::Sequential net) {
  torch::manual_seed(7);
  net->forward(torch::ones({3, 4})).square().sum().backward();
  std::vector<at::Tensor> all;
  for (const auto& parameter : net->parameters()) all.push_back(parameter.grad());
  return all;
}

TEST(RecomputeLayers, KeepNamesAndNumbers) {
  auto plain = dropping_net(), again = dropping_net();
  EXPECT_EQ(recompute_layers(*again), 4);
  EXPECT_EQ(recompute_layers(*again), 4);

  EXPECT_EQ(plain->named_parameters().keys(), again->named_parameters().keys());
  const auto a = layer_gradients(plain), b = layer_gradients(again);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(RecomputeLayers, MayBeChosen) {
  auto net = dropping_net();
  const auto is_block = [](const torch::nn::Module& module) { return module.as<DroppingLayerImpl>() != nullptr; };
  EXPECT_EQ(recompute_layers(*net, is_block), 2);

  torch::nn::Linear single(4, 4);
  EXPECT_EQ(recompute_layers(*single), 0);
}

TEST(RecomputeLayers, MayTakeAndReturnAnything) {
  torch::manual_seed(8);
  torch::nn::Sequential net(torch::nn::GRU(4, 4));
  const auto gradient = [&] {
    net->zero_grad();
    const auto [output, state] =
        net->forward<std::tuple<at::Tensor, at::Tensor>>(torch::ones({3, 2, 4}), torch::ones({1, 2, 4}));
    (output.square().sum() + state.sum()).backward();
    return net->parameters()[0].grad().clone();
  };
  const at::Tensor plain = gradient();
  EXPECT_EQ(recompute_layers(*net), 1);

  EXPECT_TRUE(at::equal(plain, gradient()));
  EXPECT_NE(net->ptr(0)->as<torch::nn::GRUImpl>(), nullptr);
}

}  // namespace
}  // namespace hasten::parallel
