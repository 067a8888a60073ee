#include "hasten/optim/schedulers/composed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// The rates over 200 steps are scheduler_reference_golden_test.cpp's.

std::vector<double> run(Scheduler& scheduler, int steps) {
  std::vector<double> rates{scheduler.rates()[0]};
  for (int step = 0; step < steps; ++step) {
    scheduler.step();
    rates.push_back(scheduler.rates()[0]);
  }
  return rates;
}

TEST(Composed, EachPartOfASequenceBeginsFromTheBaseRate) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  SequentialLR scheduler(*sgd, {.schedulers = {recipe<ConstantLR>({.factor = 0.5, .total_iters = 100}),
                                               recipe<ExponentialLR>({.gamma = 0.5})},
                                .milestones = {2}});

  EXPECT_EQ(run(scheduler, 4), (std::vector<double>{0.5, 0.5, 1.0, 0.5, 0.25}));
}

TEST(Composed, AChainMultiplies) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  ChainedScheduler scheduler(*sgd, {.schedulers = {recipe<ConstantLR>({.factor = 0.5, .total_iters = 2}),
                                                   recipe<ExponentialLR>({.gamma = 0.5})}});

  EXPECT_EQ(run(scheduler, 3), (std::vector<double>{0.5, 0.25, 0.25, 0.125}));
}

TEST(Composed, PartsMayBeComposedThemselves) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const auto inner = recipe<SequentialLR>(
      {.schedulers = {recipe<ConstantLR>({.factor = 0.25}), recipe<ExponentialLR>({.gamma = 0.5})}, .milestones = {1}});
  SequentialLR scheduler(*sgd, {.schedulers = {inner, inner}, .milestones = {3}});

  EXPECT_EQ(run(scheduler, 5), (std::vector<double>{0.25, 1.0, 0.5, 0.25, 1.0, 0.5}));
}

TEST(Composed, ANestedStateGoesOn) {
  const auto make = [](torch::optim::Optimizer& optimizer) {
    const auto chain = recipe<ChainedScheduler>(
        {.schedulers = {recipe<StepLR>({.step_size = 2}), recipe<ExponentialLR>({.gamma = 0.5})}});
    return SequentialLR(optimizer, {.schedulers = {recipe<ConstantLR>({}), chain}, .milestones = {2}});
  };
  const auto sgd = testing::optimizer_of("SGD", {1.0}), again = testing::optimizer_of("SGD", {0.123});
  auto first = make(*sgd);
  run(first, 3);
  auto second = make(*again);

  second.load_state(core::Value::parse_json(first.state().to_json()));

  EXPECT_EQ(run(second, 4), run(first, 4));
}

TEST(Composed, BadPartsAndMilestonesAreRefused) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const auto part = recipe<ExponentialLR>({.gamma = 0.5});
  const auto refused = [&](const SequentialLROptions& options) {
    return testing::refusal([&] { SequentialLR(*sgd, options); });
  };

  EXPECT_THAT(refused({}), HasSubstr("SequentialLR: schedulers = {}"));
  EXPECT_THAT(refused({.schedulers = {part, part}}), HasSubstr("the number of milestones = 0; expected 1"));
  EXPECT_THAT(refused({.schedulers = {part, part, part}, .milestones = {5, 3}}), HasSubstr("{5, 3}"));
  EXPECT_THAT(refused({.schedulers = {part, part}, .milestones = {-1}}), HasSubstr("{-1}"));
  EXPECT_THAT(testing::refusal([&] { ChainedScheduler(*sgd, {}); }), HasSubstr("ChainedScheduler: schedulers"));
}

TEST(Composed, AStateWithAnotherNumberOfPartsIsRefused) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const auto part = recipe<ExponentialLR>({.gamma = 0.5});
  ChainedScheduler one(*sgd, {.schedulers = {part}}), two(*sgd, {.schedulers = {part, part}});

  EXPECT_THAT(testing::refusal([&] { one.load_state(two.state()); }),
              HasSubstr("the state's number of schedulers = 2; expected 1"));
}

TEST(Composed, ASequenceHasEndedWithItsLastPart) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const auto cycle = recipe<OneCycleLR>({.max_lr = 1.0, .total_steps = 2, .cycle_momentum = false});
  SequentialLR scheduler(*sgd, {.schedulers = {cycle, cycle}, .milestones = {3}});
  std::vector<bool> finished{scheduler.finished()};
  for (int step = 0; step < 5; ++step) {
    scheduler.step();
    finished.push_back(scheduler.finished());
  }

  EXPECT_EQ(finished, (std::vector<bool>{false, false, false, false, false, true}));
  EXPECT_THROW(scheduler.step(), UsageError);
}

TEST(Composed, AChainHasEndedWithItsFirstPartThatHas) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  ChainedScheduler scheduler(
      *sgd, {.schedulers = {recipe<ExponentialLR>({.gamma = 0.5}),
                            recipe<OneCycleLR>({.max_lr = 1.0, .total_steps = 2, .cycle_momentum = false})}});
  run(scheduler, 1);

  EXPECT_FALSE(scheduler.finished());
  scheduler.step();
  EXPECT_TRUE(scheduler.finished());
}

}  // namespace
}  // namespace hasten::optim
