// The check of pipeline orders: what can run passes, and each mistake is named by row and column.
#include "hasten/plan/order_check.h"

#include <gmock/gmock.h>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::HasSubstr;

std::string problem(const char* csv, const OrderCheck& options = {}) {
  return problem_in_order(parse_order_csv(csv), options);
}

TEST(OrderCheck, every_order_that_is_made_can_run) {
  int checked = 0;
  for (const OrderKind kind : {OrderKind::kGPipe, OrderKind::kLoopedBfs, OrderKind::k1F1B, OrderKind::kInterleaved1F1B,
                               OrderKind::kInterleavedZeroBubble, OrderKind::kZbvZeroBubble}) {
    for (int p = 1; p <= 8; ++p) {
      for (int v = 1; v <= 4; ++v) {
        for (int m = 1; m <= 64; m += m < 20 ? 1 : 7) {
          if (!problem_with_order(kind, {p, v, m}).empty()) continue;
          ++checked;
          ASSERT_EQ(problem_in_order(make_order(kind, {p, v, m})), "")
              << order_name(kind) << " " << p << " " << v << " " << m;
        }
      }
    }
  }
  EXPECT_GT(checked, 1500);
  EXPECT_EQ(problem_in_order(make_order(OrderKind::kForwardOnly, {3, 2, 4}), {.forward_only = true}), "");
}

TEST(OrderCheck, channels_of_one_value_carry_the_orders_of_one_stage_a_rank) {
  for (const OrderKind kind : {OrderKind::kGPipe, OrderKind::k1F1B, OrderKind::kInterleavedZeroBubble}) {
    for (int p = 1; p <= 6; ++p) EXPECT_EQ(problem_in_order(make_order(kind, {p, 1, 12}), {.channel_capacity = 1}), "");
  }
  // Breadth first sends a whole stage ahead of what its own rank takes back.
  const PipelineOrder looped = make_order(OrderKind::kLoopedBfs, {2, 2, 4});
  EXPECT_THAT(problem_in_order(looped, {.channel_capacity = 1}), HasSubstr("waits for room in a channel of 1"));
  EXPECT_EQ(problem_in_order(looped, {.channel_capacity = 4}), "");
}

TEST(OrderCheck, mistakes_are_named_by_row_and_column) {
  EXPECT_THAT(problem("0F0,0B0\n1B0,1F0"), HasSubstr("row 2, column 1 (1B0) comes before its forward"));
  EXPECT_THAT(problem("0F0,0F0,0B0"), HasSubstr("row 1, column 2 (0F0) runs a second time"));
  EXPECT_THAT(problem("0F0,0B0,0B0"), HasSubstr("row 1, column 3 (0B0) runs a second time"));
  EXPECT_THAT(problem("0F0,0I0,0B0"), HasSubstr("row 1, column 3 (0B0) runs a second time"));
  EXPECT_THAT(problem("0F0,0W0,0I0"), HasSubstr("row 1, column 2 (0W0) comes before its I"));
  EXPECT_THAT(problem("0F0,0I0"), HasSubstr("no row has 0W0"));
  EXPECT_THAT(problem("0F0,0F1,0B1"), HasSubstr("no row has 0B0"));
  EXPECT_THAT(problem("0F0,0B0\n2F0,2B0"), HasSubstr("no row has 1F0"));
  EXPECT_THAT(problem("0F0,0B0\n1F0,1B0,0F1,0B1"), HasSubstr("row 2, column 3 (0F1) runs stage 0, which row 1 has"));
  EXPECT_EQ(problem_in_order({}), "the order is empty");
}

TEST(OrderCheck, a_circle_of_waits_is_found) {
  const char* circle = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1";
  EXPECT_THAT(problem(circle), HasSubstr("row 1, column 2 (0B0) waits for 1B0"));
  EXPECT_THROW(check_order(parse_order_csv(circle)), UsageError);
}

}  // namespace
}  // namespace hasten::plan
