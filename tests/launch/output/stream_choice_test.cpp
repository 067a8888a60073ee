#include "hasten/launch/output/stream_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StreamChoice, IsOneForAllOrOneForSome) {
  EXPECT_EQ(read_stream_choice("3")->of(7), 3);
  EXPECT_EQ(read_stream_choice("")->of(0), 0);
  EXPECT_EQ(read_stream_choice("0:3,12:2")->of(12), 2);
  EXPECT_EQ(read_stream_choice("0:3,12:2")->of(1), 0);
}

TEST(StreamChoice, IsRefusedIfAnyPartOfItIsWrong) {
  for (const char* wrong : {"4", "-1", "0:4", "0:1,", "a:1", "0:1,2", ":1", "0:", "1:1:1", "9999999999:1"}) {
    EXPECT_FALSE(read_stream_choice(wrong)) << wrong;
  }
}

TEST(StreamChoice, ReadsWordsWithCommasWrittenTwice) {
  EXPECT_THAT(read_words("apple, orange ,,one,"), ElementsAre("apple", "orange ,one"));
  EXPECT_THAT(read_words("a b,,"), ElementsAre("a b,"));
  EXPECT_THAT(read_words(""), IsEmpty());
}

TEST(StreamChoice, ReadsLocalRanks) {
  EXPECT_THAT(*read_local_ranks("0,2"), ElementsAre(0, 2));
  EXPECT_THAT(*read_local_ranks(""), IsEmpty());
  EXPECT_FALSE(read_local_ranks("0,"));
  EXPECT_FALSE(read_local_ranks("0,x"));
}

}  // namespace
}  // namespace hasten::launcher
