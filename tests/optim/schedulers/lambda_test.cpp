#include "hasten/optim/schedulers/lambda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"
#include "optim/scheduler_spec.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

// The rates over 200 steps are scheduler_reference_golden_test.cpp's.

TEST(LambdaLR, OneFunctionServesAllGroups) {
  const auto sgd = testing::optimizer_of("SGD", {0.1, 0.02});
  LambdaLR scheduler(*sgd, {.lr_lambda = [](int64_t s) { return s == 0 ? 1.0 : 0.5; }});

  scheduler.step();

  EXPECT_EQ(scheduler.rates(), (std::vector<double>{0.05, 0.01}));
}

TEST(LambdaLR, AMissingOrEmptyFunctionIsRefused) {
  const auto sgd = testing::optimizer_of("SGD", {0.1, 0.02});

  EXPECT_THAT(testing::refusal([&] { LambdaLR(*sgd, {}); }), HasSubstr("LambdaLR: lr_lambda has 0 values"));
  EXPECT_THAT(testing::refusal([&] { LambdaLR(*sgd, {.lr_lambda = LrLambda()}); }), HasSubstr("an empty function"));
}

TEST(MultiplicativeLR, LeavesStep0AsItIsAndMultipliesThen) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  MultiplicativeLR scheduler(*sgd, {.lr_lambda = [](int64_t s) { return static_cast<double>(s + 1); }});

  EXPECT_EQ(scheduler.rates(), std::vector<double>{1.0});
  scheduler.step();
  scheduler.step();

  EXPECT_EQ(scheduler.rates(), std::vector<double>{6.0});
}

TEST(MultiplicativeLR, TooManyFunctionsAreRefused) {
  const auto sgd = testing::optimizer_of("SGD", {1.0});
  const LrLambda half = [](int64_t) { return 0.5; };

  EXPECT_THAT(testing::refusal([&] {
                MultiplicativeLR(*sgd, {.lr_lambda = {half, half}});
              }),
              HasSubstr("MultiplicativeLR: lr_lambda has 2 values"));
}

}  // namespace
}  // namespace hasten::optim
