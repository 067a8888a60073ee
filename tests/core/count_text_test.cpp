// Numbers with their nouns.
#include "hasten/core/count_text.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace hasten {
namespace {

TEST(CountTextTest, ANounBehindOneIsNoPlural) {
  EXPECT_EQ(count_text(1, "rank"), "1 rank");
  EXPECT_EQ(count_text(uint64_t{1}, "process"), "1 process");
  EXPECT_EQ(count_text("1", "index", "indices"), "1 index");
}

TEST(CountTextTest, ANounBehindAnyOtherNumberIsAPlural) {
  EXPECT_EQ(count_text(0, "rank"), "0 ranks");
  EXPECT_EQ(count_text(-1, "epoch"), "-1 epochs");
  EXPECT_EQ(count_text(11, "process"), "11 processes");
  EXPECT_EQ(count_text("1,024", "batch"), "1,024 batches");
  EXPECT_EQ(count_text(2, "entry"), "2 entries");
  EXPECT_EQ(count_text(2, "key"), "2 keys");
  EXPECT_EQ(count_text(2, "index", "indices"), "2 indices");
}

}  // namespace
}  // namespace hasten
