// Options of Amp and Fp16Optimizer beyond the levels: output dtypes, delayed checks, operators by name, lists, masters'
// gradients.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "hasten/precision/amp.h"
#include "hasten/precision/convert.h"
#include "hasten/precision/fp16_optimizer.h"

namespace hasten::precision {
namespace {

const Amp::Backward kBackward = [](const at::Tensor& scaled) { scaled.backward(); };

TEST(AmpOptions, OutputsOfO2AreCastToTheDtypeThatIsAskedFor) {
  torch::nn::Linear net(2, 1);
  Amp amp({.opt_level = AmpLevel::kO2, .cast_model_outputs = at::kBFloat16, .verbosity = 0});

  const auto model = amp.initialize(net);

  EXPECT_EQ(model(at::ones({1, 2})).scalar_type(), at::kBFloat16);
}

TEST(AmpOptions, ADelayedOverflowCheckNeitherSkipsNorMovesTheScale) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  Amp amp({.verbosity = 0});
  auto [model, optimizer] = amp.initialize(net, sgd);

  amp.scale_loss(model(at::ones({1, 2})).sum() * INFINITY, optimizer, kBackward, {.delay_overflow_check = true});
  EXPECT_FALSE(optimizer.will_skip());
  optimizer.step();

  EXPECT_FALSE(optimizer.step_was_skipped());
  EXPECT_EQ(amp.loss_scale(), 65536.0);
  EXPECT_FALSE(at::isfinite(net->weight).any().item<bool>());
}

TEST(AmpOptions, OperatorsAreRegisteredByNameForTheAmpsLife) {
  const auto dtype = [](at::ScalarType input) {
    const Autocast scope(c10::DeviceType::CPU);
    return at::gelu(at::ones({2}, input)).scalar_type();
  };
  {
    Amp amp({.verbosity = 0});
    amp.register_float_function("aten::gelu");
    EXPECT_EQ(dtype(at::kBFloat16), at::kFloat);
  }
  {
    Amp amp({.verbosity = 0});
    amp.register_half_function("aten::gelu");
    EXPECT_EQ(dtype(at::kFloat), at::kBFloat16);
  }
  EXPECT_EQ(dtype(at::kFloat), at::kFloat);
  EXPECT_EQ(dtype(at::kBFloat16), at::kBFloat16);
}

TEST(AmpOptions, ApexsListsComputeGeluInFloat32) {
  Amp amp({.verbosity = 0, .apex_lists = true});
  const Autocast scope(c10::DeviceType::CPU);
  EXPECT_EQ(at::gelu(at::ones({2}, at::kBFloat16)).scalar_type(), at::kFloat);
}

TEST(AmpOptions, ListsOfModelsAndOptimizersGetHandlesInTheirOrder) {
  std::vector<torch::nn::Linear> nets{torch::nn::Linear(2, 1), torch::nn::Linear(3, 1)};
  torch::optim::SGD first(nets[0]->parameters(), 0.1), second(nets[1]->parameters(), 0.1);
  Amp amp({.opt_level = AmpLevel::kO2, .verbosity = 0});

  const auto [models, optimizers] = amp.initialize(nets, std::vector<torch::optim::SGD*>{&first, &second});

  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[1](at::ones({1, 3})).scalar_type(), at::kFloat);
  EXPECT_EQ(&optimizers[0].unwrap(), &first);
  EXPECT_EQ(optimizers[1].master_params()[0].sizes(), at::IntArrayRef({1, 3}));
}

TEST(AmpOptions, ADisabledAmpLeavesModelLossAndStepAsTheyAre) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
  Amp amp({.enabled = false, .opt_level = AmpLevel::kO2, .verbosity = 0});
  auto [model, optimizer] = amp.initialize(net, sgd);
  const auto before = net->weight.detach().clone();

  amp.scale_loss(model(at::ones({1, 2})).sum(), optimizer, kBackward);
  EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(net->weight.grad(), at::ones({1, 2})));
  optimizer.step();

  EXPECT_TRUE(at::equal(net->weight, before - 0.5));
}

TEST(Fp16OptimizerOptions, MastersGradientsAreShownAGroupEachAndAreUnscaled) {
  torch::nn::Linear net(2, 1);
  convert(*net, at::kHalf);
  torch::optim::SGD sgd(
      {torch::optim::OptimizerParamGroup({net->weight}), torch::optim::OptimizerParamGroup({net->bias})},
      torch::optim::SGDOptions(0.1));
  Fp16Optimizer optimizer(sgd, {.static_loss_scale = 8, .verbose = false});

  optimizer.backward(net(at::ones({1, 2}, at::kHalf)).sum());

  const auto gradients = optimizer.inspect_master_grad_data();
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_TRUE(at::equal(gradients[0].at(0), at::ones({1, 2})));
  EXPECT_EQ(gradients[1].at(0).scalar_type(), at::kFloat);
  EXPECT_NEAR(optimizer.clip_master_grads(1.0), std::sqrt(3.0), 1e-6);
  EXPECT_NEAR(optimizer.inspect_master_grad_data()[0][0][0][0].item<double>(), 1 / std::sqrt(3.0), 1e-5);
}

TEST(Fp16OptimizerOptions, AnOverflowShowsNoGradientsAndAClipOfMinusOne) {
  torch::nn::Linear net(2, 1);
  convert(*net, at::kHalf);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  Fp16Optimizer optimizer(sgd, {.dynamic_loss_scale = true, .dynamic_loss_args = {.init_scale = 64}, .verbose = false});

  optimizer.backward(net(at::ones({1, 2}, at::kHalf)).to(at::kFloat).sum() * INFINITY);

  EXPECT_TRUE(optimizer.overflow());
  EXPECT_TRUE(optimizer.inspect_master_grad_data().empty());
  EXPECT_EQ(optimizer.clip_master_grads(1.0), -1.0);
  optimizer.step();
  EXPECT_EQ(optimizer.loss_scale(), 32.0);
}

}  // namespace
}  // namespace hasten::precision
