#include "hasten/optim/schedulers/warmup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// The rates over 200 steps are scheduler_reference_golden_test.cpp's.

TEST(WarmupLR, RisesToTheBaseRateAndHandsOver) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  WarmupLR scheduler(*sgd, {.total_iters = 2, .after = recipe<ExponentialLR>({.gamma = 0.5})});
  std::vector<double> rates{scheduler.rates()[0]};

  for (int step = 0; step < 4; ++step) {
    scheduler.step();
    rates.push_back(scheduler.rates()[0]);
  }

  EXPECT_EQ(rates, (std::vector<double>{0.0, 0.5, 1.0, 0.5, 0.25}));
}

TEST(WarmupLR, GoyalsRisesFromOneWorkersRateToThatOfAll) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  WarmupLR scheduler(*sgd, gradual_warmup({.multiplier = 8.0, .total_iters = 7}));

  EXPECT_DOUBLE_EQ(scheduler.rates()[0], 0.1);
  for (int step = 0; step < 7; ++step) scheduler.step();
  EXPECT_DOUBLE_EQ(scheduler.rates()[0], 0.8);
  scheduler.step();
  EXPECT_DOUBLE_EQ(scheduler.rates()[0], 0.8);
}

TEST(WarmupLR, WithoutStepsTheScheduleBeginsAtOnce) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  WarmupLR scheduler(*sgd, {.total_iters = 0, .after = recipe<ExponentialLR>({.gamma = 0.5})});

  EXPECT_EQ(scheduler.rates(), std::vector<double>{1.0});
  scheduler.step();
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.5});
}

TEST(WarmupLR, BadOptionsAndStatesAreRefused) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const auto refused = [&](const WarmupLROptions& options) {
    return testing::refusal([&] { WarmupLR(*sgd, options); });
  };
  WarmupLR alone(*sgd, {.total_iters = 2});
  const WarmupLR followed(*sgd, {.total_iters = 2, .after = recipe<ExponentialLR>({.gamma = 0.5})});

  EXPECT_THAT(refused({}), HasSubstr("WarmupLR: total_iters = -1"));
  EXPECT_THAT(refused({.total_iters = 1, .start_factor = -0.5}), HasSubstr("start_factor = -0.5"));
  EXPECT_THAT(refused({.total_iters = 1, .end_factor = 0.0}), HasSubstr("end_factor = 0"));
  EXPECT_THAT(testing::refusal([&] { alone.load_state(followed.state()); }), HasSubstr("the state's after"));
}

}  // namespace
}  // namespace hasten::optim
