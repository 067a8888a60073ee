#include "hasten/optim/schedulers/plateau.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// Runs of 200 metrics are scheduler_reference_golden_test.cpp's.

TEST(ReduceLROnPlateau, ReducesAfterMoreBadStepsThanPatience) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ReduceLROnPlateau scheduler(*sgd, {.factor = 0.5, .patience = 1, .cooldown = 2});

  for (const double metric : {1.0, 1.0}) scheduler.step(metric);
  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.1});
  EXPECT_EQ(scheduler.num_bad_epochs(), 1);
  scheduler.step(1.0);

  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.05});
  EXPECT_TRUE(scheduler.in_cooldown());
  EXPECT_EQ(scheduler.last_epoch(), 3);
}

TEST(ReduceLROnPlateau, NanIsNoBetter) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ReduceLROnPlateau scheduler(*sgd, {.factor = 0.5, .patience = 0});

  scheduler.step(std::nan(""));

  EXPECT_EQ(scheduler.rates(), std::vector<double>{0.05});
  EXPECT_EQ(scheduler.best(), INFINITY);
}

TEST(ReduceLROnPlateau, AStateBeforeTheFirstMetricLoadsFromJsonText) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ReduceLROnPlateau scheduler(*sgd, {.mode = PlateauMode::kMax});

  scheduler.load_state(core::Value::parse_json(scheduler.state().to_json()));

  EXPECT_EQ(scheduler.best(), -INFINITY);
}

TEST(ReduceLROnPlateau, BadOptionsAndStatesAreRefusedWithNameAndValue) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  const auto refused = [&](const ReduceLROnPlateauOptions& options) {
    return testing::refusal([&] { ReduceLROnPlateau(*sgd, options); });
  };
  ReduceLROnPlateau scheduler(*sgd, {});

  EXPECT_THAT(refused({.factor = 1.0}), HasSubstr("ReduceLROnPlateau: factor = 1"));
  EXPECT_THAT(refused({.patience = -1}), HasSubstr("patience = -1"));
  EXPECT_THAT(refused({.threshold = -1.0}), HasSubstr("threshold = -1"));
  EXPECT_THAT(refused({.cooldown = -1}), HasSubstr("cooldown = -1"));
  EXPECT_THAT(refused({.min_lr = {0.1, 0.1}}), HasSubstr("min_lr has 2 values"));
  EXPECT_THAT(refused({.eps = -1.0}), HasSubstr("eps = -1"));
  EXPECT_THAT(testing::refusal([&] {
                scheduler.load_state(core::Value::map({{"scheduler", "StepLR"}}));
              }),
              HasSubstr("StepLR"));
  EXPECT_THAT(testing::refusal([&] {
                scheduler.load_state(core::Value::map({{"scheduler", "ReduceLROnPlateau"}}));
              }),
              HasSubstr("last_lr"));
}

TEST(ReduceLROnPlateau, AGroupAddedLaterIsRefused) {
  const auto sgd = testing::optimizer_of("SGD", {0.1});
  ReduceLROnPlateau scheduler(*sgd, {});
  sgd->add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{torch::zeros({1})}));

  EXPECT_THAT(testing::refusal([&] { scheduler.step(1.0); }), HasSubstr("2 parameter groups, at construction 1"));
}

}  // namespace
}  // namespace hasten::optim
