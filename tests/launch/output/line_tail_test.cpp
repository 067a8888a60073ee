#include "launch/output/line_tail.h"

#include <gtest/gtest.h>

namespace hasten::launcher {
namespace {

std::string tail_of(const std::string& bytes) {
  LineTail tail;
  for (const char c : bytes) tail.add({&c, 1});  // however they come
  return tail.lines();
}

TEST(LineTail, KeepsTheLastTwentyLines) {
  std::string all, last;
  for (int i = 0; i < 100; ++i) {
    all += std::to_string(i) + "\n";
    if (i >= 80) last += std::to_string(i) + "\n";
  }

  EXPECT_EQ(tail_of(all), last);
}

TEST(LineTail, AnUnfinishedLineIsOneOfThem) {
  std::string all;
  for (int i = 0; i < 20; ++i) all += std::to_string(i) + "\n";

  const std::string lines = tail_of(all + "the end");

  EXPECT_TRUE(lines.starts_with("1\n"));
  EXPECT_TRUE(lines.ends_with("\n19\nthe end\n"));
}

TEST(LineTail, OfALongLineTheBeginningIsKept) {
  const std::string lines = tail_of(std::string(1 << 20, 'x') + "\nnext\n");

  EXPECT_EQ(lines, std::string(LineTail::kLineBytes, 'x') + "…\nnext\n");
}

TEST(LineTail, OfAProgressBarTheLastStateIsKept) {
  EXPECT_EQ(tail_of("10 %\r50 %\r100 %\nwindows\r\n"), "100 %\nwindows\n");
}

TEST(LineTail, EscapeSequencesAndControlBytesAreLeftOut) {
  EXPECT_EQ(tail_of("\x1b[1;31mred\x1b[0m\a \x1b]0;title\atab\there\x1b(B\n\x1b["), "red tab\there\n");
}

TEST(LineTail, IsEmptyWithoutOutput) {
  EXPECT_EQ(tail_of(""), "");
}

}  // namespace
}  // namespace hasten::launcher
