#include "launch/output/line_prefixer.h"

#include <gtest/gtest.h>

namespace hasten::launcher {
namespace {

TEST(LinePrefixer, WithoutAPrefixBytesPassUnchangedAndAtOnce) {
  LinePrefixer prefixer("");

  EXPECT_EQ(prefixer.add("half \r\n li"), "half \r\n li");
  EXPECT_FALSE(prefixer.waiting());
  EXPECT_EQ(prefixer.finish(), "");
}

TEST(LinePrefixer, LinesAreHandedOnWhole) {
  LinePrefixer prefixer("[1] ");

  EXPECT_EQ(prefixer.add("one\ntw"), "[1] one\n");
  EXPECT_EQ(prefixer.add("o\n\n"), "[1] two\n[1] \n");
}

TEST(LinePrefixer, AnUnfinishedLineIsNewUntilMoreOfItComes) {
  LinePrefixer prefixer("[0] ");

  prefixer.add("a");
  EXPECT_TRUE(prefixer.is_new());
  prefixer.add("b");
  EXPECT_FALSE(prefixer.is_new());
  prefixer.add("c\nd");
  EXPECT_TRUE(prefixer.is_new()) << "what waits now has not waited";
  prefixer.flush();
  prefixer.add("e");
  EXPECT_TRUE(prefixer.is_new());
}

TEST(LinePrefixer, TheRestOfALineThatWasFlushedHasNoSecondPrefix) {
  LinePrefixer prefixer("[1] ");
  prefixer.add("working ... ");

  EXPECT_EQ(prefixer.flush(), "[1] working ... ");
  EXPECT_EQ(prefixer.add("done\nnext\n"), "done\n[1] next\n");
}

TEST(LinePrefixer, AStreamThatEndsWithoutANewlineGetsOne) {
  LinePrefixer prefixer("[1] ");
  prefixer.add("the end");

  EXPECT_EQ(prefixer.finish(), "[1] the end\n");
  EXPECT_EQ(prefixer.finish(), "");
}

TEST(LinePrefixer, EachStateOfAProgressBarHasThePrefix) {
  LinePrefixer prefixer("[1] ");

  EXPECT_EQ(prefixer.add("10 %\r20 %\r"), "[1] 10 %\r[1] 20 %\r");
  EXPECT_EQ(prefixer.finish(), "\n");
}

TEST(LinePrefixer, AReturnBeforeANewlineIsNoLineOfItsOwn) {
  LinePrefixer prefixer("[1] ");

  EXPECT_EQ(prefixer.add("one\r\ntwo\r"), "[1] one\r\n[1] two\r");
  EXPECT_EQ(prefixer.add("\nthree\n"), "\n[1] three\n");
}

TEST(LinePrefixer, AVeryLongLineIsHandedOnInPieces) {
  LinePrefixer prefixer("[1] ");
  const std::string much(LinePrefixer::kLongLine + 1, 'x');

  EXPECT_EQ(prefixer.add(much), "[1] " + much);
  EXPECT_EQ(prefixer.add("y\n"), "y\n");
}

}  // namespace
}  // namespace hasten::launcher
