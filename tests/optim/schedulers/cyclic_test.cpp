#include "hasten/optim/schedulers/cyclic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// The rates over 200 steps are scheduler_reference_golden_test.cpp's.

TEST(CyclicLR, TheMomentumGoesAgainstTheRate) {
  const auto adam = testing::optimizer_of("Adam", {1.0});
  CyclicLR scheduler(*adam, {.base_lr = 0.1, .max_lr = 0.5, .step_size_up = 2});

  EXPECT_EQ(testing::momenta_of(*adam), std::vector<double>{0.9});
  scheduler.step();
  scheduler.step();

  EXPECT_DOUBLE_EQ(scheduler.rates()[0], 0.5);
  EXPECT_DOUBLE_EQ(testing::momenta_of(*adam)[0], 0.8);
}

TEST(CyclicLR, AnOptimizerWithoutMomentumIsRefusedWithTheRemedy) {
  const auto adagrad = testing::optimizer_of("Adagrad", {1.0});

  EXPECT_THAT(testing::refusal([&] { CyclicLR(*adagrad, {.base_lr = 0.1, .max_lr = 0.5}); }),
              HasSubstr("neither momentum nor betas"));
  EXPECT_NO_THROW(CyclicLR(*adagrad, {.base_lr = 0.1, .max_lr = 0.5, .cycle_momentum = false}));
}

TEST(CyclicLR, BadBoundsAndSizesAreRefusedWithOptionAndValue) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});

  EXPECT_THAT(testing::refusal([&] { CyclicLR(*sgd, {.base_lr = 0.1}); }), HasSubstr("max_lr has 0 values"));
  EXPECT_THAT(testing::refusal([&] { CyclicLR(*sgd, {.max_lr = 0.1}); }), HasSubstr("base_lr has 0 values"));
  EXPECT_THAT(testing::refusal([&] { CyclicLR(*sgd, {.base_lr = 0.1, .max_lr = 1, .step_size_up = 0}); }),
              HasSubstr("CyclicLR: step_size_up = 0"));
  EXPECT_THAT(testing::refusal([&] { CyclicLR(*sgd, {.base_lr = 0.1, .max_lr = 1, .step_size_down = 0}); }),
              HasSubstr("step_size_down = 0"));
  EXPECT_THAT(testing::refusal([&] { CyclicLR(*sgd, {.base_lr = 0.1, .max_lr = 1, .gamma = 0.0}); }),
              HasSubstr("gamma = 0"));
}

TEST(CyclicLR, AStateLeavesTheBoundsOfTheProgram) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const CyclicLR before(*sgd, {.base_lr = 0.1, .max_lr = 0.5, .step_size_up = 1, .cycle_momentum = false});
  CyclicLR after(*sgd, {.base_lr = 0.2, .max_lr = 0.5, .step_size_up = 1, .cycle_momentum = false});

  after.load_state(before.state());
  after.step();
  EXPECT_DOUBLE_EQ(after.rates()[0], 0.5);
  after.step();

  EXPECT_DOUBLE_EQ(after.rates()[0], 0.2);
}

}  // namespace
}  // namespace hasten::optim
