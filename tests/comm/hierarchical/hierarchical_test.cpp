#include "comm/hierarchical/hierarchical.h"

#include <gtest/gtest.h>

namespace hasten::comm {
namespace {

TEST(Hierarchical, RanksAreGroupedByHostInTheOrderOfTheirFirstRanks) {
  EXPECT_EQ(group_by_host({"b", "a", "b", "a", "c"}), (Hosts{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(group_by_host({"a", "a"}), (Hosts{{0, 1}}));
}

TEST(Hierarchical, ARankWhoseHostIsUnknownIsAlone) {
  EXPECT_EQ(group_by_host({"", "a", "", "a"}), (Hosts{{0}, {1, 3}, {2}}));
}

}  // namespace
}  // namespace hasten::comm
