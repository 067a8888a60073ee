#include "comm/two_level.h"

#include <gtest/gtest.h>

namespace hasten::comm {
namespace {

TEST(TwoLevel, RanksAreGroupedByHostInTheOrderOfTheirFirstRanks) {
  EXPECT_EQ(group_by_host({"b", "a", "b", "a", "c"}), (Hosts{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(group_by_host({"a", "a"}), (Hosts{{0, 1}}));
}

TEST(TwoLevel, ARankWhoseHostIsUnknownIsAlone) {
  EXPECT_EQ(group_by_host({"", "a", "", "a"}), (Hosts{{0}, {1, 3}, {2}}));
}

}  // namespace
}  // namespace hasten::comm
