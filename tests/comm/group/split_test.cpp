#include "comm/group/split.h"

#include <gtest/gtest.h>

namespace hasten::comm {
namespace {

TEST(Split, RanksOfAColorComeByKeyAndEqualKeysByRank) {
  const std::vector<SplitKey> by_rank = {{1, 5}, {0, 0}, {1, 2}, {1, 2}, {-1, 0}};

  EXPECT_EQ(split_ranks(by_rank, 1), (std::vector{2, 3, 0}));
  EXPECT_EQ(split_ranks(by_rank, 0), (std::vector{1}));
  EXPECT_TRUE(split_ranks(by_rank, 7).empty());
}

}  // namespace
}  // namespace hasten::comm
