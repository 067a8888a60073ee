// Living casts against at::autocast, bit for bit; copies that follow writes of every kind; fp8 layers in unmodified
// modules.
#include "hasten/precision/living_casts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/precision/autocast.h"
#include "hasten/precision/known_limitations.h"

namespace hasten::precision {
namespace {

using Forward = std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)>;

struct Kind {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  Forward forward;
  std::vector<int64_t> input;
};

template <class Impl>
Kind plain(std::string name, std::function<std::shared_ptr<Impl>()> make, std::vector<int64_t> input) {
  return {std::move(name), make,
          [](torch::nn::Module& module, const at::Tensor& x) { return dynamic_cast<Impl&>(module).forward(x); },
          std::move(input)};
}

std::vector<Kind> kinds() {
  using namespace torch::nn;
  std::vector<Kind> all;
  all.push_back(plain<LinearImpl>("linear 2-d", [] { return std::make_shared<LinearImpl>(8, 6); }, {5, 8}));
  all.push_back(plain<LinearImpl>("linear 3-d", [] { return std::make_shared<LinearImpl>(8, 6); }, {3, 5, 8}));
  all.push_back(plain<LinearImpl>(
      "linear without bias", [] { return std::make_shared<LinearImpl>(LinearOptions(8, 6).bias(false)); }, {5, 8}));
  all.push_back(
      plain<Conv1dImpl>("conv1d", [] { return std::make_shared<Conv1dImpl>(Conv1dOptions(3, 4, 3)); }, {2, 3, 9}));
  all.push_back(plain<Conv2dImpl>(
      "conv2d", [] { return std::make_shared<Conv2dImpl>(Conv2dOptions(3, 4, 3).padding(torch::kSame)); },
      {2, 3, 9, 9}));
  all.push_back(plain<Conv3dImpl>(
      "conv3d", [] { return std::make_shared<Conv3dImpl>(Conv3dOptions(3, 4, 3).bias(false)); }, {2, 3, 5, 5, 5}));
  all.push_back(plain<ConvTranspose2dImpl>(
      "conv_transpose2d", [] { return std::make_shared<ConvTranspose2dImpl>(ConvTranspose2dOptions(3, 4, 3)); },
      {2, 3, 5, 5}));
  all.push_back(
      Kind{"lstm",
           [] { return std::make_shared<LSTMImpl>(8, 6); },
           [](Module& module, const at::Tensor& x) { return std::get<0>(dynamic_cast<LSTMImpl&>(module).forward(x)); },
           {4, 2, 8}});
  all.push_back(
      Kind{"gru",
           [] { return std::make_shared<GRUImpl>(8, 6); },
           [](Module& module, const at::Tensor& x) { return std::get<0>(dynamic_cast<GRUImpl&>(module).forward(x)); },
           {4, 2, 8}});
  all.push_back(Kind{"attention",
                     [] { return std::make_shared<MultiheadAttentionImpl>(8, 2); },
                     [](Module& module, const at::Tensor& x) {
                       return std::get<0>(dynamic_cast<MultiheadAttentionImpl&>(module).forward(x, x, x));
                     },
                     {4, 2, 8}});
  return all;
}

struct Outcome {
  std::vector<at::Tensor> values;
};

// Three steps, the second one with two backwards through one graph; then evaluation under no_grad and in inference
// mode.
Outcome run(const Kind& kind, at::ScalarType dtype, bool living) {
  torch::manual_seed(7);
  const auto module = kind.make();
  std::optional<LivingCasts> casts;
  if (living) casts.emplace(*module);
  torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.01));
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    auto x = torch::randn(kind.input).requires_grad_();
    at::Tensor y;
    {
      const Autocast scope(c10::DeviceType::CPU, {.dtype = dtype});
      y = kind.forward(*module, x);
    }
    const auto loss = y.to(at::kFloat).square().mean();
    loss.backward({}, /*retain_graph=*/step == 1);
    if (step == 1) loss.backward();
    outcome.values.push_back(loss.detach());
    outcome.values.push_back(x.grad());
    for (const auto& parameter : module->parameters()) outcome.values.push_back(parameter.grad().clone());
    adam.step();
    adam.zero_grad();
  }
  const auto x = torch::randn(kind.input);
  {
    const torch::NoGradGuard no_grad;
    const Autocast scope(c10::DeviceType::CPU, {.dtype = dtype});
    outcome.values.push_back(kind.forward(*module, x));
  }
  {
    const c10::InferenceMode inference;
    const Autocast scope(c10::DeviceType::CPU, {.dtype = dtype});
    outcome.values.push_back(kind.forward(*module, x.clone()).to(at::kFloat).clone());
  }
  return outcome;
}

TEST(LivingCasts, ModulesComputeAsUnderAutocastBitForBit) {
  for (const auto& kind : kinds()) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      compute_unsupported_in_float32(dtype);  // LSTMs of most processors
      const auto theirs = run(kind, dtype, false), ours = run(kind, dtype, true);
      ASSERT_EQ(ours.values.size(), theirs.values.size());
      for (size_t i = 0; i < ours.values.size(); ++i) {
        EXPECT_TRUE(at::equal(ours.values[i].to(at::kFloat), theirs.values[i].to(at::kFloat)))
            << kind.name << " " << dtype << ", value " << i;
      }
    }
  }
}

at::Tensor product(torch::nn::Linear& net, const at::Tensor& x) {
  const Autocast scope(c10::DeviceType::CPU);
  return net(x);
}

TEST(LivingCasts, AnEvaluationInInferenceModeLeavesCopiesThatTrainingCanSave) {
  torch::nn::Linear net(8, 4);
  const LivingCasts casts(*net);
  const auto x = at::ones({2, 8});
  {
    const c10::InferenceMode evaluation;
    product(net, x);
  }

  EXPECT_NO_THROW(product(net, x).sum().backward());

  EXPECT_TRUE(net->weight.grad().defined());
  EXPECT_EQ(casts.num_casts(), 2) << "the copies of the evaluation serve";
}

TEST(LivingCasts, OneCastServesScopesAndMicroBatchesUntilAWrite) {
  torch::nn::Linear net(8, 4);
  const LivingCasts casts(*net);
  const auto x = at::ones({2, 8});
  for (int i = 0; i < 5; ++i) product(net, x).sum().backward();
  EXPECT_EQ(casts.num_casts(), 2);  // weight and bias
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  sgd.step();
  product(net, x);
  product(net, x);
  EXPECT_EQ(casts.num_casts(), 4);
  EXPECT_EQ(net(x).scalar_type(), at::kFloat);
}

TEST(LivingCasts, EveryWayOfWritingIsSeenBetweenAndInsideScopes) {
  const auto x = at::ones({1, 1});
  using Write = std::function<void(at::Tensor&)>;
  const std::vector<std::pair<const char*, Write>> ways = {
      {"fill_", [](at::Tensor& w) { w.fill_(3); }},
      {"data", [](at::Tensor& w) { w.data().fill_(3); }},
      {"pointer", [](at::Tensor& w) { w.mutable_data_ptr<float>()[0] = 3; }},
      {"accessor",
       [](at::Tensor& w) {
         auto own = w.detach();
         own.accessor<float, 2>()[0][0] = 3;
       }},
      {"copy_",
       [](at::Tensor& w) {
         w.copy_(at::full({1, 1}, 3.0));
       }},
      {"view", [](at::Tensor& w) { w.view({1}).fill_(3); }},
      {"set_data",
       [](at::Tensor& w) {
         w.set_data(at::full({1, 1}, 3.0));
       }},
      {"set_",
       [](at::Tensor& w) {
         w.set_(at::full({1, 1}, 3.0));
       }},
      {"sgd",
       [](at::Tensor& w) {
         w.mutable_grad() = at::full({1, 1}, -2.0);
         torch::optim::SGD({w}, torch::optim::SGDOptions(1.0)).step();
         w.mutable_grad() = at::Tensor();
       }},
      {"fused sgd", [](at::Tensor& w) {
         std::vector<at::Tensor> p{w}, g{at::full({1, 1}, -2.0)};
         at::_fused_sgd_(p, g, {}, 0.0, 0.0, 1.0, 0.0, false, false, true);
       }}};
  for (const auto& [name, write] : ways) {
    for (const bool inside : {false, true}) {
      torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
      {
        const torch::NoGradGuard no_grad;
        net->weight.fill_(1);
      }
      const LivingCasts casts(*net);
      std::optional<Autocast> scope;
      if (inside) scope.emplace(c10::DeviceType::CPU);
      EXPECT_EQ(product(net, x).item<float>(), 1.0F) << name;
      {
        const torch::NoGradGuard no_grad;
        write(net->weight);
      }
      const auto y = product(net, x);
      EXPECT_EQ(y.item<float>(), 3.0F) << name << (inside ? " inside" : " between");
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    }
  }
}

TEST(LivingCasts, TheirEndLeavesTheModuleAsItWas) {
  torch::nn::Linear net(8, 4);
  const auto keys = net->weight.key_set();
  { const LivingCasts casts(*net); }
  EXPECT_EQ(net->weight.key_set(), keys);
  EXPECT_EQ(product(net, at::ones({2, 8})).scalar_type(), at::kBFloat16);
}

TEST(Fp8Layers, ChosenLayersOfAnUnmodifiedModelComputeInEightBitsInsideScopes) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 32), torch::nn::ReLU(),
                            torch::nn::Linear(32, 4));
  const auto x = torch::randn({16, 16});
  const auto wanted = net->forward(x);
  const auto scoped = [&] {
    const Autocast scope(c10::DeviceType::CPU);
    return net->forward(x).to(at::kFloat);
  };
  const auto plain = scoped();
  for (const auto recipe :
       {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kRowwiseGradHp, Fp8Recipe::kDelayed}) {
    Fp8Layers layers(*net, {.recipe = recipe});
    EXPECT_EQ(layers.names(), std::vector<std::string>{"2"});
    const auto y = scoped();
    EXPECT_FALSE(at::equal(y, plain));
    EXPECT_LT((y - wanted).abs().max().item<float>(), 0.15F);
    y.square().mean().backward();
    for (const auto& parameter : net->parameters()) {
      EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
    }
    if (recipe == Fp8Recipe::kDelayed) {
      EXPECT_GT(layers.scales()[0]->input_amax, 0.0F);
    }
    EXPECT_TRUE(at::equal(net->forward(x), wanted));
  }
  EXPECT_TRUE(at::equal(scoped(), plain));
}

}  // namespace
}  // namespace hasten::precision
