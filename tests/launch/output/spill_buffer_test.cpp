#include "launch/output/spill_buffer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

// Numbers, so that a piece that is missing, doubled or misplaced shows.
std::string numbers(int first, int last) {
  std::string result;
  for (int i = first; i < last; ++i) result += text(i, ' ');
  return result;
}

std::string all_of(SpillBuffer& buffer) {
  std::string result;
  while (!buffer.empty()) result += buffer.pop();
  return result;
}

TEST(SpillBuffer, GivesBackWhatItWasGivenInOrder) {
  SpillBuffer buffer(::testing::TempDir());

  EXPECT_EQ(buffer.push("one "), 4u);
  EXPECT_EQ(buffer.push("two"), 3u);

  EXPECT_EQ(all_of(buffer), "one two");
  EXPECT_EQ(buffer.pop(), "");
}

TEST(SpillBuffer, WhatFindsNoRoomInMemoryGoesToDiskAndStaysInOrder) {
  SpillBuffer buffer(::testing::TempDir(), 1000);
  std::string expected, taken;

  for (int round = 0; round < 50; ++round) {
    const std::string bytes = numbers(round * 5000, (round + 1) * 5000);
    EXPECT_EQ(buffer.push(bytes), bytes.size());
    expected += bytes;
    taken += buffer.pop();
  }

  EXPECT_EQ(taken + all_of(buffer), expected);
}

TEST(SpillBuffer, LinesComeWholeWhereMemoryEndsAndTheDiskBegins) {
  for (size_t memory = 8; memory < 40; ++memory) {
    SpillBuffer buffer(::testing::TempDir(), memory);
    std::string all;
    for (int i = 0; i < 4; ++i) buffer.push(text("line ", i, "\n"));

    while (!buffer.empty()) {
      const std::string lines = buffer.pop_lines();
      EXPECT_TRUE(lines.ends_with('\n')) << "'" << lines << "' with " << memory << " bytes of memory";
      all += lines;
    }

    EXPECT_EQ(all, "line 0\nline 1\nline 2\nline 3\n");
  }
}

TEST(SpillBuffer, TheLastLineNeedsNoEndAndALongOneComesInPieces) {
  SpillBuffer buffer(::testing::TempDir());
  const std::string endless(200'000, 'x');

  buffer.push("one\ntwo");
  EXPECT_EQ(buffer.pop_lines(), "one\ntwo");
  buffer.push(endless);
  EXPECT_LT(buffer.pop_lines().size(), endless.size());
}

TEST(SpillBuffer, CanBeUsedAgainAfterTheDiskWasNeeded) {
  SpillBuffer buffer(::testing::TempDir(), 10);
  const std::string bytes = numbers(0, 1000);

  for (int round = 0; round < 3; ++round) {
    buffer.push(bytes);
    EXPECT_EQ(all_of(buffer), bytes);
  }
}

TEST(SpillBuffer, TakesOnlyWhatThereIsRoomFor) {
  SpillBuffer no_disk("/nonexistent", 10);
  EXPECT_EQ(no_disk.push("more than ten bytes"), 10u);
  EXPECT_EQ(no_disk.push("x"), 0u);
  EXPECT_EQ(all_of(no_disk), "more than ");
  EXPECT_EQ(no_disk.push("x"), 1u);
}

TEST(SpillBuffer, OfAFullDiskItUsesWhatThereIs) {
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  SpillBuffer buffer(::testing::TempDir(), 10);
  const std::string bytes = numbers(0, 5000);

  const size_t taken = buffer.push(bytes);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);

  EXPECT_EQ(taken, 10u + 4096u);
  EXPECT_EQ(all_of(buffer), bytes.substr(0, taken));
}

TEST(SpillBuffer, LeavesNoFileBehindEvenWhileItIsUsed) {
  const std::filesystem::path folder = ::testing::TempDir() + text("hasten_backlog_test_", getpid());
  std::filesystem::create_directory(folder);
  SpillBuffer buffer(folder, 10);

  buffer.push(numbers(0, 1000));

  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
}

}  // namespace
}  // namespace hasten::launcher
