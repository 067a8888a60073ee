// Weights below float32 in whole training loops: against float32, against each other, and their memory.
#include "hasten/optim/prepared/low_weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/prepared/prepared_optimizer.h"

namespace hasten::optim {
namespace {

using precision::Weights;

struct Trained {
  torch::nn::Linear net{8, 4};
  std::shared_ptr<LowWeights> weights;
};

// `steps` small steps on gradients that do not depend on the form.
template <class O, class Options>
Trained train(Weights form, const Options& options, int steps, LowWeightsOptions low = {}) {
  torch::manual_seed(2);
  Trained result;
  const auto state = std::make_shared<training::GradientState>();
  if (form != Weights::kParameter) {
    low.form = form;
    result.weights = std::make_shared<LowWeights>(low);
    result.weights->convert(*result.net);
    state->step_policies().add(training::StepOrder::kStep, result.weights);
  }
  auto optimizer = std::make_shared<O>(result.net->parameters(), options);
  const PreparedOptimizer<O> prepared(optimizer, state);
  auto generator = at::detail::createCPUGenerator(9);
  for (int i = 0; i < steps; ++i) {
    for (const auto& parameter : result.net->parameters()) {
      parameter.mutable_grad() = at::randn(parameter.sizes(), generator).to(at::kBFloat16).to(parameter.scalar_type());
    }
    prepared.step();
  }
  return result;
}

TEST(LowWeights, MasterAndSplitAreTheSameBitForBitForEveryOptimizer) {
  const auto expect = [](const Trained& master, const Trained& split) {
    for (size_t i = 0; i < 2; ++i) {
      const auto a = master.net->parameters()[i], b = split.net->parameters()[i];
      EXPECT_TRUE(at::equal(master.weights->value_of(a), split.weights->value_of(b)));
      EXPECT_EQ(a.scalar_type(), at::kBFloat16);
    }
  };
  using namespace torch::optim;
  expect(train<SGD>(Weights::kMaster, SGDOptions(1e-3).momentum(0.9).weight_decay(0.1), 200),
         train<SGD>(Weights::kSplit, SGDOptions(1e-3).momentum(0.9).weight_decay(0.1), 200));
  expect(train<AdamW>(Weights::kMaster, AdamWOptions(1e-3), 200),
         train<AdamW>(Weights::kSplit, AdamWOptions(1e-3), 200));
  expect(train<Adam>(Weights::kMaster, AdamOptions(1e-3).amsgrad(true), 50),
         train<Adam>(Weights::kSplit, AdamOptions(1e-3).amsgrad(true), 50));
  expect(train<RMSprop>(Weights::kMaster, RMSpropOptions(1e-3).momentum(0.9), 50),
         train<RMSprop>(Weights::kSplit, RMSpropOptions(1e-3).momentum(0.9), 50));
  expect(train<Adagrad>(Weights::kMaster, AdagradOptions(1e-3), 50),
         train<Adagrad>(Weights::kSplit, AdagradOptions(1e-3), 50));
  expect(train<ApexAdam>(Weights::kMaster, ApexAdamOptions(1e-3), 50),
         train<ApexAdam>(Weights::kSplit, ApexAdamOptions(1e-3), 50));
}

TEST(LowWeights, SmallUpdatesAreKeptByEveryFormAndFollowFloat32) {
  const torch::optim::SGDOptions options(1e-4);
  const auto wanted = train<torch::optim::SGD>(Weights::kParameter, options, 1000);
  for (const auto form : {Weights::kMaster, Weights::kSplit, Weights::kStochastic, Weights::kKahan}) {
    const auto ours = train<torch::optim::SGD>(form, options, 1000);
    const double slack = form == Weights::kMaster || form == Weights::kSplit ? 1e-6
                         : form == Weights::kKahan                           ? 4e-3
                                                                             : 0.02;
    const double off = (ours.weights->value_of(ours.net->weight) - wanted.net->weight).abs().max().item<double>();
    EXPECT_LT(off, slack) << static_cast<int>(form);
  }
}

TEST(LowWeights, TheBytesBesideTheWeightsAreThoseOfTheForm) {
  const int64_t count = 8 * 4 + 4;
  for (const auto& [form, bytes] :
       {std::pair(Weights::kMaster, 4), {Weights::kSplit, 2}, {Weights::kStochastic, 0}, {Weights::kKahan, 2}}) {
    EXPECT_EQ(train<torch::optim::SGD>(form, torch::optim::SGDOptions(0.1), 1).weights->extra_bytes(), bytes * count);
  }
}

TEST(LowWeights, MomentsCanBeHalvesAndStochasticRunsRepeat) {
  const auto options = torch::optim::AdamWOptions(1e-3);
  const auto a = train<torch::optim::AdamW>(Weights::kStochastic, options, 20, {.states = at::kBFloat16, .seed = 3});
  const auto b = train<torch::optim::AdamW>(Weights::kStochastic, options, 20, {.states = at::kBFloat16, .seed = 3});
  const auto c = train<torch::optim::AdamW>(Weights::kStochastic, options, 20, {.states = at::kBFloat16, .seed = 4});
  EXPECT_TRUE(at::equal(a.net->weight, b.net->weight));
  EXPECT_FALSE(at::equal(a.net->weight, c.net->weight));
}

TEST(LowWeights, AStepIsAChangeOfTheParametersVersion) {
  for (const Weights form : {Weights::kMaster, Weights::kSplit, Weights::kKahan, Weights::kStochastic}) {
    const auto before = train<ApexAdam>(form, ApexAdamOptions(0.01), 1),
               after = train<ApexAdam>(form, ApexAdamOptions(0.01), 2);

    EXPECT_GT(after.net->parameters()[0]._version(), before.net->parameters()[0]._version());
  }
}

TEST(LowWeights, ValuesCanBeReadAndSetExactly) {
  auto trained = train<torch::optim::SGD>(Weights::kSplit, torch::optim::SGDOptions(0.1), 1);
  const auto value = torch::randn({4, 8});
  trained.weights->set_value(trained.net->weight, value);
  EXPECT_TRUE(at::equal(trained.weights->value_of(trained.net->weight), value));
  EXPECT_THROW(trained.weights->set_value(trained.net->weight, at::ones({2})), UsageError);
}

TEST(LowWeights, WhatHasNoLoopIsRefusedByName) {
  torch::nn::Linear net(2, 2);
  const torch::optim::LBFGS lbfgs(net->parameters());
  EXPECT_THROW(LowWeights::require(lbfgs), UsageError);
  EXPECT_THROW(LowWeights({.form = Weights::kSplit, .dtype = at::kHalf}), UsageError);
  EXPECT_THROW(LowWeights({.form = Weights::kParameter}), UsageError);
}

}  // namespace
}  // namespace hasten::optim
