#include "hasten/tracking/run/each.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace hasten::tracking {
namespace {

std::string contents(std::FILE* file) {
  std::rewind(file);
  std::string bytes;
  for (int c = 0; (c = std::fgetc(file)) != EOF;) bytes += static_cast<char>(c);
  return bytes;
}

TEST(Each, LoopsOverTheRangeItselfAndSaysHowFarItCame) {
  std::FILE* const file = std::tmpfile();
  std::vector<int> numbers = {1, 2, 3};
  double now = 0;

  for (int& number : each(numbers, {.description = "numbers", .output = file, .clock_s = [&] { return now; }})) {
    number *= 2;
    now += 1;
  }

  EXPECT_EQ(numbers, (std::vector<int>{2, 4, 6}));
  EXPECT_EQ(contents(file), "numbers: 3/3 [00:03, 1.00 it/s]\n");
  std::fclose(file);
}

TEST(Each, ALoopThatIsLeftEarlyLeavesAWholeLine) {
  std::FILE* const file = std::tmpfile();
  for (const int number : each(std::vector<int>{1, 2, 3, 4}, {.output = file, .clock_s = [] { return 0.0; }})) {
    if (number == 3) break;
  }

  EXPECT_EQ(contents(file), "2/4 [00:00, ? it/s]\n");
  std::fclose(file);
}

TEST(ProgressOptions, AResumedLoopCountsItsRateFromWhereItWentOn) {
  std::FILE* const file = std::tmpfile();
  double now = 0;
  Progress bar(100, {.initial = 90, .output = file, .clock_s = [&] { return now; }});
  now = 5;
  bar.advance(10);
  bar.finish();

  EXPECT_EQ(contents(file), "100/100 [00:05, 2.00 it/s]\n");
  std::fclose(file);
}

TEST(ProgressOptions, ABarThatIsNotToBeLeftWritesNothingIntoAFile) {
  std::FILE* const file = std::tmpfile();
  {
    Progress outer(2, {.output = file});
    Progress inner(3, {.leave = false, .below = &outer, .output = file});
    inner.advance(3);
    outer.advance(2);
  }
  const std::string text = contents(file);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  std::fclose(file);
}

TEST(ProgressText, ASmoothedRateWinsOverTheMean) {
  EXPECT_EQ(format_progress({.done = 10, .total = 20, .elapsed_s = 10, .rate = 2.0}, 60).substr(0, 5), " 50%|");
  EXPECT_NE(format_progress({.done = 10, .total = 20, .elapsed_s = 10, .rate = 2.0}, 60).find("<00:05, 2.00 it/s"),
            std::string::npos);
}

}  // namespace
}  // namespace hasten::tracking
