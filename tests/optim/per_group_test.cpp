#include "hasten/optim/per_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "optim/refusal.h"

namespace hasten::optim {
namespace {

using ::testing::HasSubstr;

TEST(PerGroup, OneValueServesAllGroups) {
  const PerGroup<double> value = 3;

  EXPECT_EQ(value.expand(2, "S", "o"), (std::vector<double>{3.0, 3.0}));
}

TEST(PerGroup, AListHasOneForEach) {
  const PerGroup<double> values = {1.0, 2.0};

  EXPECT_EQ(values.expand(2, "S", "o"), (std::vector<double>{1.0, 2.0}));
}

TEST(PerGroup, TakesFunctions) {
  const PerGroup<std::function<double(int64_t)>> twice = [](int64_t s) { return 2.0 * static_cast<double>(s); };

  EXPECT_EQ(twice.expand(1, "S", "o")[0](4), 8.0);
}

TEST(PerGroup, AnotherNumberIsRefusedByName) {
  const PerGroup<double> values = {1.0, 2.0};

  EXPECT_THAT(testing::refusal([&] { values.expand(3, "CyclicLR", "max_lr"); }),
              HasSubstr("CyclicLR: max_lr has 2 values, the optimizer 3 parameter groups"));
  EXPECT_THAT(testing::refusal([&] { PerGroup<double>().expand(3, "CyclicLR", "max_lr"); }),
              HasSubstr("max_lr has 0 values"));
  EXPECT_TRUE(PerGroup<double>().empty());
}

}  // namespace
}  // namespace hasten::optim
