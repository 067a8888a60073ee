#include "hasten/optim/schedulers/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

TEST(Scheduler, TheConstructorSetsTheRatesOfStep0) {
  const auto sgd = testing::optimizer_of("SGD", {0.1, 0.02});

  const LinearLR scheduler(*sgd, {.start_factor = 0.5});

  EXPECT_EQ(scheduler.rates(), (std::vector<double>{0.05, 0.01}));
  EXPECT_EQ(testing::rates_of(*sgd), scheduler.rates());
  EXPECT_EQ(scheduler.last_epoch(), 0);
  EXPECT_EQ(scheduler.step_count(), 1);
  EXPECT_FALSE(scheduler.finished());
  EXPECT_EQ(&scheduler.optimizer(), sgd.get());
}

TEST(Scheduler, ARateChangedByHandStaysChanged) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ExponentialLR scheduler(*sgd, {.gamma = 0.5});

  sgd->param_groups()[0].options().set_lr(8.0);
  scheduler.step();

  EXPECT_EQ(scheduler.rates(), std::vector<double>{4.0});
}

TEST(Scheduler, AMovedOneGoesOn) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ExponentialLR first(*sgd, {.gamma = 0.5});
  first.step();

  ExponentialLR second = std::move(first);
  second.step();

  EXPECT_EQ(second.rates(), std::vector<double>{0.025});
  EXPECT_EQ(second.last_epoch(), 2);
}

TEST(Scheduler, AGroupAddedLaterIsRefusedWithBothNumbers) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ExponentialLR scheduler(*sgd, {.gamma = 0.5});
  sgd->add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{torch::zeros({1})}));

  const auto words = testing::refusal([&] { scheduler.step(); });

  EXPECT_THAT(words, HasSubstr("ExponentialLR: the optimizer has 2 parameter groups, at construction 1"));
}

TEST(Scheduler, AStateOfAnotherSchedulerIsRefusedByName) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ExponentialLR scheduler(*sgd, {.gamma = 0.5});

  EXPECT_THAT(testing::refusal([&] { scheduler.load_state(StepLR(*sgd, {.step_size = 2}).state()); }),
              HasSubstr("ExponentialLR: the state is of StepLR"));
  EXPECT_THAT(testing::refusal([&] { scheduler.load_state(core::Value(3)); }), HasSubstr("no scheduler"));
}

TEST(Scheduler, AStateWithOtherGroupsOrMissingKeysIsRefused) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  const auto two = testing::optimizer_of("SGD", {0.1, 0.2});
  ExponentialLR scheduler(*sgd, {.gamma = 0.5});
  auto partial = scheduler.state();
  partial.erase("last_lr");

  EXPECT_THAT(testing::refusal([&] { scheduler.load_state(ExponentialLR(*two, {.gamma = 0.5}).state()); }),
              HasSubstr("2 parameter groups; this one has 1"));
  EXPECT_THAT(testing::refusal([&] { scheduler.load_state(partial); }), HasSubstr("last_lr"));
}

TEST(Scheduler, StartAndRestartBeginAnew) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  StepLR scheduler(*sgd, {.step_size = 1, .gamma = 0.5});
  scheduler.step();

  scheduler.start();
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.05});
  EXPECT_EQ(scheduler.last_epoch(), 0);

  scheduler.restart();
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.1});
}

TEST(Scheduler, WhatPreparesAsOneIsKnown) {
  EXPECT_TRUE(SchedulerLike<StepLR>);
  EXPECT_TRUE(SchedulerLike<Scheduler&>);
  EXPECT_TRUE(SchedulerLike<ReduceLROnPlateau>);
  EXPECT_FALSE(SchedulerLike<torch::optim::SGD>);
}

}  // namespace
}  // namespace hasten::optim
