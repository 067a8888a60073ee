#include "hasten/optim/schedulers/one_cycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// The rates over 200 steps are scheduler_reference_golden_test.cpp's.

TEST(OneCycleLR, TheLastRateStaysForTheStepAfterTheLastBatch) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  OneCycleLR scheduler(
      *sgd, {.max_lr = 0.5, .total_steps = 5, .anneal_strategy = AnnealStrategy::kLinear, .div_factor = 2.0});

  for (int step = 0; step < 4; ++step) scheduler.step();
  EXPECT_NEAR(scheduler.rates()[0], 0.25 / 1e4, 1e-15);
  EXPECT_FALSE(scheduler.finished());
  scheduler.step();

  EXPECT_NEAR(scheduler.rates()[0], 0.25 / 1e4, 1e-15);
  EXPECT_DOUBLE_EQ(testing::momenta_of(*sgd)[0], 0.95);
  EXPECT_TRUE(scheduler.finished());
}

TEST(OneCycleLR, AStepPastTheEndIsRefusedAndChangesNothing) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  OneCycleLR scheduler(*sgd, {.max_lr = 0.5, .epochs = 2, .steps_per_epoch = 2});
  for (int64_t step = 0; step < scheduler.total_steps(); ++step) scheduler.step();

  EXPECT_THAT(testing::refusal([&] { scheduler.step(); }), HasSubstr("OneCycleLR: step 5, but total_steps = 4"));
  EXPECT_EQ(scheduler.last_epoch(), 4);
  EXPECT_EQ(scheduler.step_count(), 5);
}

TEST(OneCycleLR, ARiseOfOneStepIsAtItsTopAtOnce) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});

  const OneCycleLR scheduler(*sgd, {.max_lr = 0.5, .total_steps = 10, .pct_start = 0.1});

  EXPECT_DOUBLE_EQ(scheduler.rates()[0], 0.5);
}

TEST(OneCycleLR, BadOptionsAreRefusedWithNameAndValue) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const auto adagrad = testing::optimizer_of("Adagrad", {1.0});
  const auto refused = [](torch::optim::Optimizer& optimizer, const OneCycleLROptions& options) {
    return testing::refusal([&] { OneCycleLR(optimizer, options); });
  };

  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1}), HasSubstr("expected total_steps, or epochs and steps_per_epoch"));
  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1, .epochs = 3}), HasSubstr("no length"));
  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1, .total_steps = 0}), HasSubstr("OneCycleLR: total_steps = 0"));
  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1, .epochs = 0, .steps_per_epoch = 3}), HasSubstr("epochs = 0"));
  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1, .epochs = 3, .steps_per_epoch = -1}), HasSubstr("steps_per_epoch = -1"));
  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1, .total_steps = 5, .pct_start = 1.5}), HasSubstr("pct_start = 1.5"));
  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1, .total_steps = 5, .div_factor = 0.0}), HasSubstr("div_factor = 0"));
  EXPECT_THAT(refused(*sgd, {.max_lr = 0.1, .total_steps = 5, .final_div_factor = 0.0}),
              HasSubstr("final_div_factor = 0"));
  EXPECT_THAT(refused(*sgd, {.total_steps = 5}), HasSubstr("max_lr has 0 values"));
  EXPECT_THAT(refused(*adagrad, {.max_lr = 0.1, .total_steps = 5}), HasSubstr("neither momentum nor betas"));
}

}  // namespace
}  // namespace hasten::optim
