// The picture of an order: cells, idle time, letters of further stages, long lines.
#include "hasten/plan/order_picture.h"

#include <gmock/gmock.h>

namespace hasten::plan {
namespace {

using ::testing::HasSubstr;

TEST(OrderPicture, each_rank_is_a_line_over_time) {
  EXPECT_EQ(draw_order(make_order(OrderKind::k1F1B, {2, 1, 2}), {StageCost{}}),
            "rank 0 |F0 F1 .  .  B0 -- .  B1 --\n"
            "rank 1 |.  F0 B0 -- F1 B1 -- .  .\n");
}

TEST(OrderPicture, further_stages_of_a_rank_have_letters) {
  EXPECT_THAT(draw_order(make_order(OrderKind::kInterleaved1F1B, {2, 2, 2}), {StageCost{}}),
              HasSubstr("F0  F1  F0b F1b"));
  EXPECT_THAT(draw_order(make_order(OrderKind::kZbvZeroBubble, {2, 2, 3}), {StageCost{}}),
              HasSubstr("rank 1 |.   F0  F0b"));
}

TEST(OrderPicture, a_line_is_cut_where_the_caller_says) {
  EXPECT_EQ(draw_order(make_order(OrderKind::kGPipe, {1, 1, 9}), {StageCost{}}, {.most_cells = 3}),
            "rank 0 |F0 F1 F2 …\n");
  EXPECT_EQ(draw_order(make_order(OrderKind::kForwardOnly, {1, 1, 2}), {StageCost{}}, {.unit_s = 0.5}),
            "rank 0 |F0 -- F1 --\n");
}

}  // namespace
}  // namespace hasten::plan
