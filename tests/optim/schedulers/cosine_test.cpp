#include "hasten/optim/schedulers/cosine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// The rates over 200 steps are scheduler_reference_golden_test.cpp's.

TEST(Cosine, FallsToEtaMinAndRisesAgain) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  CosineAnnealingLR scheduler(*sgd, {.T_max = 10, .eta_min = 0.25});

  for (int step = 0; step < 10; ++step) scheduler.step();
  EXPECT_NEAR(scheduler.rates()[0], 0.25, 1e-12);

  for (int step = 0; step < 10; ++step) scheduler.step();
  EXPECT_NEAR(scheduler.rates()[0], 1.0, 1e-12);
}

TEST(Cosine, RestartsJumpBackToTheBaseRate) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  CosineAnnealingWarmRestarts scheduler(*sgd, {.T_0 = 2, .T_mult = 3});
  std::vector<int64_t> restarts;

  for (int step = 0; step < 30; ++step) {
    scheduler.step();
    if (scheduler.rates()[0] == 1.0) restarts.push_back(scheduler.last_epoch());
  }

  EXPECT_EQ(restarts, (std::vector<int64_t>{2, 8, 26}));
}

TEST(Cosine, BadLengthsAndMinimaAreRefusedWithOptionAndValue) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});

  EXPECT_THAT(testing::refusal([&] { CosineAnnealingLR(*sgd, {}); }), HasSubstr("CosineAnnealingLR: T_max = 0"));
  EXPECT_THAT(testing::refusal([&] { CosineAnnealingLR(*sgd, {.T_max = 1, .eta_min = -1.0}); }),
              HasSubstr("eta_min = -1"));
  EXPECT_THAT(testing::refusal([&] { CosineAnnealingWarmRestarts(*sgd, {}); }), HasSubstr("T_0 = 0"));
  EXPECT_THAT(testing::refusal([&] { CosineAnnealingWarmRestarts(*sgd, {.T_0 = 2, .T_mult = 0}); }),
              HasSubstr("T_mult = 0"));
}

}  // namespace
}  // namespace hasten::optim
