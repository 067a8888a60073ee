#include "comm/types/collective_fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;

Fingerprint record(OpType kind, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return Fingerprint::of(kind, std::source_location::current()).with_tensor(torch::empty(shape, dtype));
}

TEST(CollectiveFingerprint, EqualRecordsAgree) {
  EXPECT_EQ(disagreement({record(OpType::kAllReduce, {2, 3}), record(OpType::kAllReduce, {2, 3})}), std::nullopt);
}

TEST(CollectiveFingerprint, FirstSizesMayDifferInGathersOnly) {
  EXPECT_EQ(disagreement({record(OpType::kAllGather, {2, 3}), record(OpType::kAllGather, {5, 3})}), std::nullopt);
  EXPECT_NE(disagreement({record(OpType::kAllReduce, {2, 3}), record(OpType::kAllReduce, {5, 3})}), std::nullopt);
  EXPECT_NE(disagreement({record(OpType::kAllGather, {2, 3}), record(OpType::kAllGather, {2, 4})}), std::nullopt);
}

TEST(CollectiveFingerprint, TheFirstRankThatDiffersIsNamedWithBothSides) {
  auto mine = record(OpType::kAllReduce, {2});
  mine.with_op(ReduceOp::kMean);
  auto theirs = record(OpType::kAllReduce, {2}, at::kLong);
  theirs.with_op(ReduceOp::kMean);

  const auto difference = disagreement({mine, mine, theirs});

  ASSERT_TRUE(difference);
  EXPECT_THAT(*difference, HasSubstr("rank 0 calls all_reduce(mean) of Float [2] at collective_fingerprint_test.cpp:"));
  EXPECT_THAT(*difference, HasSubstr("rank 2 calls all_reduce(mean) of Long [2]"));
}

TEST(CollectiveFingerprint, SequenceNumbersTellWhoIsAhead) {
  auto late = record(OpType::kBarrier, {});
  auto early = record(OpType::kBarrier, {});
  early.sequence = 7;

  EXPECT_THAT(disagreement({late, early}).value_or(""), HasSubstr("operations number 0 and 7 of the group"));
}

TEST(CollectiveFingerprint, SizesBeyondTheEighthAreStillCompared) {
  EXPECT_NE(disagreement({record(OpType::kBroadcast, {1, 1, 1, 1, 1, 1, 1, 1, 1, 2}),
                          record(OpType::kBroadcast, {1, 1, 1, 1, 1, 1, 1, 1, 1, 3})}),
            std::nullopt);
}

}  // namespace
}  // namespace hasten::comm
