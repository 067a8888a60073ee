// Heads that are dealt to ranks.
#include "hasten/plan/attention_heads.h"

#include <gtest/gtest.h>

namespace hasten::plan {
namespace {

TEST(AttentionHeads, each_rank_gets_equally_many) {
  EXPECT_EQ(problem_with_heads({{"heads", 12}}, 4), "");
  EXPECT_EQ(problem_with_heads({{"heads", 8}, {"key-value heads", 2}}, 2), "");
  EXPECT_EQ(problem_with_heads({}, 3), "");
}

TEST(AttentionHeads, what_does_not_divide_names_the_numbers_that_all_counts_take) {
  EXPECT_EQ(problem_with_heads({{"heads", 12}}, 8), "12 heads, tp 8; 1, 2, 3, 4, 6, 12 are possible");
  EXPECT_EQ(problem_with_heads({{"heads", 8}, {"key-value heads", 2}}, 4),
            "8 heads, 2 key-value heads, tp 4; 1, 2 are possible");
  EXPECT_EQ(problem_with_heads({{"heads", 8}, {"key-value heads", 1}}, 2),
            "8 heads, 1 key-value heads, tp 2; 1 is possible");
}

}  // namespace
}  // namespace hasten::plan
