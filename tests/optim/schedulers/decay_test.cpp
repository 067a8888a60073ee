#include "hasten/optim/schedulers/decay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// The rates over 200 steps are scheduler_reference_golden_test.cpp's.

TEST(Decay, MilestonesGivenTwiceDecayTwice) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  MultiStepLR scheduler(*sgd, {.milestones = {1, 2, 2}, .gamma = 0.5});

  scheduler.step();
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.5});

  scheduler.step();
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.125});
}

TEST(Decay, BadStepsAreRefusedWithOptionAndValue) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});

  EXPECT_THAT(testing::refusal([&] { StepLR(*sgd, {}); }), HasSubstr("StepLR: step_size = 0; expected at least 1"));
  EXPECT_THAT(testing::refusal([&] { MultiStepLR(*sgd, {}); }), HasSubstr("milestones = {}"));
  EXPECT_THAT(testing::refusal([&] {
                MultiStepLR(*sgd, {.milestones = {30, 10}});
              }),
              HasSubstr("MultiStepLR: milestones = {30, 10}; expected steps from 0 on, in ascending order"));
  EXPECT_THAT(testing::refusal([&] { MultiStepLR(*sgd, {.milestones = {-1, 10}}); }), HasSubstr("{-1, 10}"));
  EXPECT_THAT(testing::refusal([&] { ConstantLR(*sgd, {.total_iters = 0}); }),
              HasSubstr("ConstantLR: total_iters = 0"));
  EXPECT_THAT(testing::refusal([&] { LinearLR(*sgd, {.total_iters = -3}); }), HasSubstr("LinearLR: total_iters = -3"));
  EXPECT_THAT(testing::refusal([&] { PolynomialLR(*sgd, {.total_iters = 0}); }),
              HasSubstr("PolynomialLR: total_iters = 0"));
}

TEST(Decay, BadFactorsAreRefusedWithOptionAndValue) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});

  EXPECT_THAT(testing::refusal([&] { StepLR(*sgd, {.step_size = 1, .gamma = -0.5}); }), HasSubstr("gamma = -0.5"));
  EXPECT_THAT(testing::refusal([&] { MultiStepLR(*sgd, {.milestones = {1}, .gamma = 0.0}); }),
              HasSubstr("gamma = 0; expected a number above 0"));
  EXPECT_THAT(testing::refusal([&] { ExponentialLR(*sgd, {}); }), HasSubstr("ExponentialLR: gamma = 0"));
  EXPECT_THAT(testing::refusal([&] { ExponentialLR(*sgd, {.gamma = std::nan("")}); }), HasSubstr("gamma = nan"));
  EXPECT_THAT(testing::refusal([&] { ConstantLR(*sgd, {.factor = 1.5}); }), HasSubstr("factor = 1.5"));
  EXPECT_THAT(testing::refusal([&] { LinearLR(*sgd, {.start_factor = 0.0}); }), HasSubstr("start_factor = 0"));
  EXPECT_THAT(testing::refusal([&] { LinearLR(*sgd, {.end_factor = 1.1}); }), HasSubstr("end_factor = 1.1"));
  EXPECT_THAT(testing::refusal([&] { PolynomialLR(*sgd, {.power = -1.0}); }), HasSubstr("power = -1"));
}

TEST(Decay, ARefusedSchedulerLeavesTheRates) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});

  testing::refusal([&] { LinearLR(*sgd, {.end_factor = 1.1}); });

  EXPECT_EQ(testing::rates_of(*sgd), std::vector<double>{1.0});
}

}  // namespace
}  // namespace hasten::optim
