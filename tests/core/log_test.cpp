#include "hasten/core/log.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "hasten/core/error.h"

namespace hasten {
namespace {

Logger recording(LogIdentity identity, std::vector<std::string>& lines, LogLevel level = LogLevel::kInfo) {
  Logger logger("train", std::move(identity), level);
  logger.redirect([&lines](std::string_view line) { lines.emplace_back(line); });
  return logger;
}

TEST(Logger, LinesCarryTheRankOnlyWhenThereAreSeveral) {
  std::vector<std::string> alone, among;

  recording({0, 1}, alone).info("start");
  recording({2, 4}, among).info("start", {.main_process_only = false});

  EXPECT_EQ(alone, std::vector<std::string>{"[train] start"});
  EXPECT_EQ(among, std::vector<std::string>{"[train] rank 2/4: start"});
}

TEST(Logger, OtherRanksAreSilentByDefault) {
  std::vector<std::string> lines;

  recording({1, 2}, lines).error("boom");

  EXPECT_TRUE(lines.empty());
}

TEST(Logger, LevelsBelowTheThresholdAreDropped) {
  std::vector<std::string> lines;
  const Logger logger = recording({}, lines, LogLevel::kWarning);

  logger.info("detail");
  logger.warning("look");

  EXPECT_EQ(lines, std::vector<std::string>{"[train] look"});
}

TEST(Logger, WarningOnceSaysEachTextOnce) {
  std::vector<std::string> lines;
  const Logger logger = recording({}, lines);

  for (int i = 0; i < 3; ++i) logger.warning_once("again");
  logger.warning_once("other");

  EXPECT_EQ(lines, (std::vector<std::string>{"[train] again", "[train] other"}));
}

TEST(Logger, InOrderWritesByRank) {
  std::vector<std::string> lines;
  std::mutex mutex;
  std::condition_variable changed;
  int waiting = 0, round = 0;
  const auto barrier = [&] {
    std::unique_lock lock(mutex);
    const int mine = round;
    if (++waiting == 3) {
      waiting = 0;
      ++round;
      changed.notify_all();
    } else {
      changed.wait(lock, [&] { return round != mine; });
    }
  };
  std::vector<std::thread> ranks;
  for (int rank : {2, 0, 1}) {
    ranks.emplace_back([&, rank] {
      Logger logger("train", {rank, 3, barrier}, LogLevel::kInfo);
      logger.redirect([&](std::string_view line) { lines.emplace_back(line); });
      logger.info("here", {.main_process_only = false, .in_order = true});
    });
  }
  for (auto& rank : ranks) rank.join();

  EXPECT_EQ(lines,
            (std::vector<std::string>{"[train] rank 0/3: here", "[train] rank 1/3: here", "[train] rank 2/3: here"}));
}

TEST(Logger, InOrderWithoutABarrierIsRefused) {
  std::vector<std::string> lines;

  EXPECT_THROW(recording({0, 2}, lines).info("x", {.in_order = true}), UsageError);
}

TEST(Logger, LevelComesFromHastensVariableThenAcceleratesThenTheDefault) {
  EXPECT_EQ(log_level(Environment::of({{"HASTEN_LOG_LEVEL", "DEBUG"}, {"ACCELERATE_LOG_LEVEL", "ERROR"}})),
            LogLevel::kDebug);
  EXPECT_EQ(log_level(Environment::of({{"ACCELERATE_LOG_LEVEL", "ERROR"}})), LogLevel::kError);
  EXPECT_EQ(log_level(Environment::of({})), LogLevel::kWarning);
  EXPECT_THROW(log_level(Environment::of({{"HASTEN_LOG_LEVEL", "loud"}})), UsageError);
}

}  // namespace
}  // namespace hasten
