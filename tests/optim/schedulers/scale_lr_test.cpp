#include "hasten/optim/schedulers/scale_lr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/refusal.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

TEST(ScaleLr, GrowsWithTheProcessesOrTheirRoot) {
  EXPECT_DOUBLE_EQ(scale_lr(0.1, 4), 0.4);
  EXPECT_DOUBLE_EQ(scale_lr(0.1, 4, LrScaling::kSquareRoot), 0.2);
  EXPECT_DOUBLE_EQ(scale_lr(0.1, 1), 0.1);
}

TEST(ScaleLr, BadValuesAreRefused) {
  EXPECT_THAT(testing::refusal([] { scale_lr(0.0, 4); }), HasSubstr("scale_lr: base = 0"));
  EXPECT_THAT(testing::refusal([] { scale_lr(0.1, 0); }), HasSubstr("scale_lr: world_size = 0"));
}

}  // namespace
}  // namespace hasten::optim
