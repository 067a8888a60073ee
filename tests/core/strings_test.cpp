#include "hasten/core/strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hasten::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Strings, TrimTakesBlanksFromBothEnds) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim(" \n "), "");
  EXPECT_EQ(trim("\na\n", " "), "\na\n");
}

TEST(Strings, CaseIsThatOfAscii) {
  EXPECT_EQ(lower("ABz_\xc3\x84"), "abz_\xc3\x84");
  EXPECT_EQ(upper("abZ1"), "ABZ1");
}

TEST(Strings, PartsEndAtTheirSeparator) {
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split(",a,", ','), ElementsAre("", "a"));
  EXPECT_THAT(split("", ','), IsEmpty());
}

TEST(Strings, FlagsAreThoseOfAccelerate) {
  for (const char* yes : {"1", "true", "YES", "on", "y", "T"}) EXPECT_EQ(parse_flag(yes), true) << yes;
  for (const char* no : {"0", "False", "no", "off", "n", "f"}) EXPECT_EQ(parse_flag(no), false) << no;
  for (const char* none : {"", "2", " yes", "maybe"}) EXPECT_EQ(parse_flag(none), std::nullopt) << none;
}

}  // namespace
}  // namespace hasten::core
