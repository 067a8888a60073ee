#include "hasten/core/error.h"

#include <gtest/gtest.h>

namespace hasten {
namespace {

TEST(Error, AWorldOfOneNamesNoRank) {
  EXPECT_STREQ(UsageError({"data"}, "batch_size is ", 0).what(), "[data] batch_size is 0");
}

TEST(Error, SeveralRanksNameTheirs) {
  EXPECT_STREQ(UsageError({"ddp", 3, 8}, "'head.weight' moved").what(), "[ddp] rank 3/8: 'head.weight' moved");
}

TEST(Error, CommErrorCarriesRankAndOperation) {
  const CommError error({"comm", 1, 2}, "all_reduce", "timed out");

  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.operation(), "all_reduce");
}

TEST(Error, DataErrorCarriesItsPath) {
  EXPECT_EQ(DataError({"data"}, "a/b.gz", "cut").path(), "a/b.gz");
}

}  // namespace
}  // namespace hasten
