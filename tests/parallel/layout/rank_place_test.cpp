#include "hasten/parallel/layout/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/plan/layout.h"

namespace hasten::parallel {
namespace {

using ::testing::ThrowsMessage;

const RankPlace kPlace{plan::coordinate_text({.pp = 2, .dp_shard = 1, .tp = 8}, 13), 13};

void fail_in_a_group() {
  throw CommError(Origin{"comm", 5, 8}, "all_reduce", "all_reduce was not completed: rank 2 failed.");
}

TEST(RankPlace, StandsInThePlaceOfTheGroupsNumber) {
  EXPECT_THAT([] { at_place(kPlace, fail_in_a_group); },
              ThrowsMessage<CommError>("[comm] rank 13 (pp 1, tp 5): all_reduce was not completed: rank 2 failed."));
}

TEST(RankPlace, StandsThereOnceAndOnlyIfItHasWords) {
  EXPECT_THAT([] { at_place(kPlace, [] { at_place(kPlace, fail_in_a_group); }); },
              ThrowsMessage<CommError>("[comm] rank 13 (pp 1, tp 5): all_reduce was not completed: rank 2 failed."));
  EXPECT_THAT([] { at_place(RankPlace{}, fail_in_a_group); },
              ThrowsMessage<CommError>("[comm] rank 5/8: all_reduce was not completed: rank 2 failed."));
}

TEST(RankPlace, KeepsTheOperationAndHasTheRunsRank) {
  try {
    at_place(kPlace, fail_in_a_group);
    FAIL() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_EQ(error.operation(), "all_reduce");
    EXPECT_EQ(error.rank(), 13);
  }
}

TEST(RankPlace, LeavesResultsAndOtherErrorsAsTheyAre) {
  EXPECT_EQ(at_place(kPlace, [] { return 7; }), 7);
  EXPECT_THAT([] { at_place(kPlace, [] { throw UsageError("[comm] no."); }); },
              ThrowsMessage<UsageError>("[comm] no."));
}

}  // namespace
}  // namespace hasten::parallel
