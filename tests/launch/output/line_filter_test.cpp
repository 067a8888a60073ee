#include "launch/output/line_filter.h"

#include <gtest/gtest.h>

namespace hasten::launcher {
namespace {

TEST(LineFilter, PicksLinesWithAnyOfTheWords) {
  LineFilter filter({"apple", "orange"}, "[default0]:");

  EXPECT_EQ(filter.add("an apple\na pear\norange"), "[default0]:an apple\n");
  EXPECT_EQ(filter.add("s\n"), "[default0]:oranges\n");
}

TEST(LineFilter, AWordMayComeInTwoParts) {
  LineFilter filter({"apple"}, "");

  EXPECT_EQ(filter.add("ap"), "");
  EXPECT_EQ(filter.add("ple\n"), "apple\n");
}

TEST(LineFilter, TheLastLineNeedsNoNewline) {
  LineFilter filter({"apple"}, "");

  EXPECT_EQ(filter.add("apple"), "");
  EXPECT_EQ(filter.finish(), "apple\n");
  EXPECT_EQ(filter.finish(), "");
}

TEST(LineFilter, WithoutWordsNothingIsPickedOrKept) {
  LineFilter filter;

  EXPECT_EQ(filter.add("apple\nrest"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(LineFilter, AnEndlessLineIsNotKept) {
  LineFilter filter({"x"}, "");

  EXPECT_EQ(filter.add(std::string(LineFilter::kLongLine + 1, 'x')).size(), LineFilter::kLongLine + 2);
}

}  // namespace
}  // namespace hasten::launcher
