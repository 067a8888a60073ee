#include "hasten/accelerator/preparation.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/optim/fastai.h"
#include "hasten/optim/schedulers/lambda.h"

namespace tuned {

/// A kind of object that hasten knows nothing of, with a prepare_object of its own.
struct Throttle {
  double rate = 1.0;
};
struct PreparedThrottle {
  double rate;
  int world_size;
  bool placed;
};
PreparedThrottle prepare_object(const hasten::Preparation& preparation, const Throttle& throttle, bool place) {
  return {throttle.rate / preparation.process().world_size(), preparation.process().world_size(), place};
}

struct Unknown {};

}  // namespace tuned

namespace hasten {
namespace {

using process::Process;

static_assert(Preparable<torch::nn::Linear&> && Preparable<torch::optim::SGD&> && Preparable<tuned::Throttle>);
static_assert(!Preparable<tuned::Unknown> && !Preparable<int>);

Accelerator alone(const AcceleratorOptions& options = {}) {
  return Accelerator(Process(process::RankInfo{}, comm::Group()), options);
}

TEST(Preparation, AnotherKindOfObjectIsPreparedByItsOwnFunction) {
  const Accelerator accelerator = alone({.tune_allocator = false});
  torch::nn::Linear net(2, 1);

  const auto [model, throttle] = accelerator.prepare(net, tuned::Throttle{0.5});

  EXPECT_EQ(throttle.rate, 0.5);
  EXPECT_EQ(throttle.world_size, 1);
  EXPECT_TRUE(throttle.placed);
  EXPECT_EQ(model(torch::ones({3, 2})).sizes(), (at::IntArrayRef{3, 1}));
}

TEST(Preparation, TheOwnFunctionIsToldWhereTheObjectGoes) {
  const Accelerator accelerator = alone({.tune_allocator = false});

  EXPECT_FALSE(accelerator.prepare({.device_placement = {false}}, tuned::Throttle{}).placed);
}

TEST(Preparation, SharesTheStateOfItsAcceleratorAndOutlivesIt) {
  std::optional<Accelerator> accelerator = alone({.gradient_accumulation_steps = 3, .tune_allocator = false});
  const Preparation preparation = accelerator->preparation();
  const auto* gradients = &accelerator->gradient_state();
  accelerator.reset();

  EXPECT_EQ(preparation.options().gradient_accumulation_steps, 3);
  EXPECT_EQ(preparation.gradient_state().get(), gradients);
}

TEST(Preparation, BorrowsLvaluesOwnsRvaluesAndSharesHolders) {
  torch::nn::LinearImpl borrowed(1, 1);
  torch::nn::Linear holder(1, 1);

  EXPECT_EQ(hold(borrowed).get(), &borrowed);
  EXPECT_EQ(hold(holder)->ptr(), holder.ptr());
  EXPECT_EQ(*hold(std::string("owned")), "owned");
}

double width_of(torch::nn::Linear& net) {
  return static_cast<double>(net->options.out_features());
}
void step_all(const std::vector<Optimizer>& optimizers) {
  for (const auto& optimizer : optimizers) {
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(Preparation, PreparedTypesCanBeNamedAndPassedOn) {
  const Accelerator accelerator = alone({.tune_allocator = false});
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  torch::optim::Adam adam(net->parameters(), 0.5);
  Model<torch::nn::Linear> model = accelerator.prepare(net);
  const std::vector<Optimizer> optimizers = {accelerator.prepare(sgd), accelerator.prepare(adam)};
  const at::Tensor before = net->weight.detach().clone();
  accelerator.backward(model(torch::ones({1, 2})).sum());
  step_all(optimizers);

  EXPECT_EQ(width_of(model), 1.0);
  EXPECT_FALSE(net->weight.equal(before));
  EXPECT_FALSE(net->weight.grad().defined());
}

TEST(Preparation, AnOptimizerOfAFactoryIsOwnedOrBorrowed) {
  const Accelerator accelerator = alone({.tune_allocator = false});
  torch::nn::Linear net(2, 1);
  auto made = std::make_unique<torch::optim::SGD>(net->parameters(), 0.5);
  auto* raw = made.get();
  const auto borrowed = accelerator.prepare(made);
  EXPECT_EQ(&borrowed.unwrap(), raw);

  const auto owned = accelerator.prepare(std::move(made));

  EXPECT_EQ(&owned.unwrap(), raw);
  EXPECT_FALSE(made);
}

TEST(Preparation, WhatFactoriesReturnIsPrepared) {
  const Accelerator accelerator = alone({.tune_allocator = false});
  torch::nn::Linear net(2, 1);
  const auto made = optim::fastai::sgd()({torch::optim::OptimizerParamGroup(net->parameters())}, 0.5);
  std::unique_ptr<optim::Scheduler> schedule = std::make_unique<optim::LambdaLR>(
      *made, optim::LambdaLROptions{.lr_lambda = optim::LrLambda([](int64_t step) { return step + 1.0; })});
  const auto* raw = schedule.get();

  const auto [model, optimizer, scheduler] = accelerator.prepare(net, made, std::move(schedule));

  EXPECT_EQ(&optimizer.unwrap(), made.get());
  EXPECT_EQ(&scheduler.unwrap(), raw);
  accelerator.backward(model(torch::ones({1, 2})).sum());
  optimizer.step();
  scheduler.step();
  EXPECT_DOUBLE_EQ(made->param_groups()[0].options().get_lr(), 1.0);
}

TEST(Preparation, AnEmptyPointerIsRefused) {
  const Accelerator accelerator = alone({.tune_allocator = false});
  std::unique_ptr<torch::optim::SGD> none;

  EXPECT_THROW((void)accelerator.prepare(none), UsageError);
  EXPECT_THROW((void)accelerator.prepare(std::shared_ptr<torch::optim::Adam>()), UsageError);
}

TEST(Preparation, ASchedulerOfLibtorchIsPreparedByItsAdapter) {
  const Accelerator accelerator = alone({.tune_allocator = false});
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  torch::optim::StepLR step_lr(sgd, 1, 0.1);
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto scheduler = accelerator.prepare(optim::TorchScheduler(step_lr, sgd));
  // The first step of libtorch's schedulers leaves the rate as it is.
  for (int i = 0; i < 2; ++i) {
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
    scheduler.step();
  }

  EXPECT_DOUBLE_EQ(scheduler.rates().at(0), 0.05);
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.05);
}

}  // namespace
}  // namespace hasten
