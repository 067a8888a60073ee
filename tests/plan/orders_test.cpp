// Orders of pipelines: names, what is refused, text in and out, the place of stages.
#include "hasten/plan/orders.h"

#include <gmock/gmock.h>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(OrderKind kind, const OrderSizes& sizes) {
  try {
    make_order(kind, sizes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Orders, names_are_ours_and_torchs) {
  for (const OrderKind kind :
       {OrderKind::kDefault, OrderKind::kGPipe, OrderKind::kLoopedBfs, OrderKind::k1F1B, OrderKind::kInterleaved1F1B,
        OrderKind::kInterleavedZeroBubble, OrderKind::kZbvZeroBubble, OrderKind::kForwardOnly, OrderKind::kAuto})
    EXPECT_EQ(parse_order(order_name(kind)), kind);
  EXPECT_EQ(parse_order("ScheduleGPipe"), OrderKind::kGPipe);
  EXPECT_EQ(parse_order("InterleavedZeroBubble"), OrderKind::kInterleavedZeroBubble);
  EXPECT_THROW(parse_order("DualPipeV"), UsageError);
  EXPECT_THROW(parse_order("2f2b"), UsageError);
}

TEST(Orders, the_default_depends_on_the_chunks) {
  EXPECT_EQ(make_order(OrderKind::kDefault, {4, 1, 6}), make_order(OrderKind::k1F1B, {4, 1, 6}));
  EXPECT_EQ(make_order(OrderKind::kDefault, {4, 2, 8}), make_order(OrderKind::kInterleaved1F1B, {4, 2, 8}));
}

TEST(Orders, sizes_that_a_kind_does_not_take_name_the_ones_it_does) {
  EXPECT_THAT(refusal(OrderKind::kInterleaved1F1B, {2, 3, 5}), HasSubstr("fit are 4 or 6"));
  EXPECT_THAT(refusal(OrderKind::k1F1B, {2, 2, 4}), HasSubstr("interleaved_1f1b"));
  EXPECT_THAT(refusal(OrderKind::kGPipe, {2, 2, 4}), HasSubstr("looped_bfs"));
  EXPECT_THAT(refusal(OrderKind::kZbvZeroBubble, {2, 1, 4}), HasSubstr("2 stages a rank, not 1"));
  EXPECT_THAT(refusal(OrderKind::kGPipe, {0, 1, 4}), HasSubstr("ranks 0"));
  EXPECT_THAT(refusal(OrderKind::kAuto, {2, 1, 4}), HasSubstr("best_order"));
}

TEST(Orders, text_goes_out_and_in) {
  for (const OrderKind kind : {OrderKind::kLoopedBfs, OrderKind::kInterleavedZeroBubble, OrderKind::kZbvZeroBubble}) {
    const PipelineOrder order = make_order(kind, {3, 2, 12});
    EXPECT_EQ(parse_order_csv(order_csv(order)), order);
  }
  // torch writes idle slots as empty cells.
  EXPECT_EQ(parse_order_csv("0F0,,0B0\n,1F0,1B0\n"), make_order(OrderKind::kGPipe, {2, 1, 1}));
}

TEST(Orders, a_cell_that_is_no_action_is_named_by_row_and_column) {
  const auto refused = [](const char* csv) -> std::string {
    try {
      parse_order_csv(csv, "order.csv");
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refused("0F0,0B0\n1F0,1SEND_F0\n"), HasSubstr("order.csv, row 2, column 2: '1SEND_F0'"));
  EXPECT_THAT(refused("0X0"), HasSubstr("row 1, column 1"));
  EXPECT_THAT(refused("-1F0"), HasSubstr("row 1, column 1"));
  EXPECT_THAT(refused("0F99999999999"), HasSubstr("row 1, column 1"));
  EXPECT_THAT(refused("\n\n"), HasSubstr("holds no action"));
}

TEST(Orders, the_place_of_a_stage_is_the_one_in_the_order) {
  for (const OrderKind kind : {OrderKind::kLoopedBfs, OrderKind::kInterleaved1F1B, OrderKind::kInterleavedZeroBubble,
                               OrderKind::kZbvZeroBubble}) {
    const OrderSizes sizes{4, 2, 8};
    const auto ranks = stage_ranks(make_order(kind, sizes));
    for (int stage = 0; stage < 8; ++stage)
      EXPECT_EQ(ranks[static_cast<size_t>(stage)], rank_of_stage(kind, sizes, stage));
  }
  EXPECT_THAT(stage_ranks(make_order(OrderKind::kZbvZeroBubble, {2, 2, 3})), ElementsAre(0, 1, 1, 0));
}

}  // namespace
}  // namespace hasten::plan
