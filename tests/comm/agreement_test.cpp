#include "comm/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;

Record record(Kind kind, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return Record::of(kind, std::source_location::current()).with_tensor(torch::empty(shape, dtype));
}

TEST(Agreement, EqualRecordsAgree) {
  EXPECT_EQ(disagreement({record(Kind::kAllReduce, {2, 3}), record(Kind::kAllReduce, {2, 3})}), std::nullopt);
}

TEST(Agreement, FirstSizesMayDifferInGathersOnly) {
  EXPECT_EQ(disagreement({record(Kind::kAllGather, {2, 3}), record(Kind::kAllGather, {5, 3})}), std::nullopt);
  EXPECT_NE(disagreement({record(Kind::kAllReduce, {2, 3}), record(Kind::kAllReduce, {5, 3})}), std::nullopt);
  EXPECT_NE(disagreement({record(Kind::kAllGather, {2, 3}), record(Kind::kAllGather, {2, 4})}), std::nullopt);
}

TEST(Agreement, TheFirstRankThatDiffersIsNamedWithBothSides) {
  auto mine = record(Kind::kAllReduce, {2});
  mine.with_op(ReduceOp::kMean);
  auto theirs = record(Kind::kAllReduce, {2}, at::kLong);
  theirs.with_op(ReduceOp::kMean);

  const auto difference = disagreement({mine, mine, theirs});

  ASSERT_TRUE(difference);
  EXPECT_THAT(*difference, HasSubstr("rank 0 calls all_reduce(mean) of Float [2] at agreement_test.cpp:"));
  EXPECT_THAT(*difference, HasSubstr("rank 2 calls all_reduce(mean) of Long [2]"));
}

TEST(Agreement, SequenceNumbersTellWhoIsAhead) {
  auto late = record(Kind::kBarrier, {});
  auto early = record(Kind::kBarrier, {});
  early.sequence = 7;

  EXPECT_THAT(disagreement({late, early}).value_or(""), HasSubstr("operations number 0 and 7 of the group"));
}

TEST(Agreement, SizesBeyondTheEighthAreStillCompared) {
  EXPECT_NE(disagreement({record(Kind::kBroadcast, {1, 1, 1, 1, 1, 1, 1, 1, 1, 2}),
                          record(Kind::kBroadcast, {1, 1, 1, 1, 1, 1, 1, 1, 1, 3})}),
            std::nullopt);
}

}  // namespace
}  // namespace hasten::comm
