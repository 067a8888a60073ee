#include "hasten/process/rank_watch.h"

#include <gtest/gtest.h>

#include <optional>

#include "hasten/core/error.h"
#include "hasten/core/memory_file.h"
#include "hasten/core/text.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/recorder.h"
#include "hasten/process/process.h"

namespace hasten::process {
namespace {

class RankWatchTest : public ::testing::Test {
 protected:
  RankWatchTest() { flight::announce(page_, {.rank = 1, .world_size = 2}); }
  Environment environment(std::map<std::string, std::string> more = {}) const {
    more.insert({{"RANK", "1"},
                 {"LOCAL_RANK", "1"},
                 {"WORLD_SIZE", "2"},
                 {"LOCAL_WORLD_SIZE", "2"},
                 {"MASTER_ADDR", "127.0.0.1"},
                 {"MASTER_PORT", "29500"},
                 {"HASTEN_FLIGHT_FD", text(page_.descriptor())}});
    return Environment::of(std::move(more));
  }
  flight::PageState state() const { return flight::PageView(page_.descriptor()).read().state; }

  MemoryFile page_ = MemoryFile::create(flight::kPageLabel, flight::kPageBytes);
};

TEST_F(RankWatchTest, TheLaunchersPageHasThisRankForAsLongAsItIsWatched) {
  auto watch = watch_rank(environment());

  ASSERT_NE(watch, nullptr);
  EXPECT_EQ(state(), flight::PageState::kRunning);
  EXPECT_EQ(flight::PageView(page_.descriptor()).read().rank, 1);
  watch.reset();
  EXPECT_EQ(state(), flight::PageState::kLeft);
}

TEST_F(RankWatchTest, NothingIsWatchedWithoutALauncherAndWhereItIsSwitchedOff) {
  EXPECT_EQ(watch_rank(Environment::of({{"RANK", "0"}, {"WORLD_SIZE", "2"}})), nullptr);
  EXPECT_EQ(watch_rank(Environment::of({})), nullptr);
  EXPECT_EQ(watch_rank(environment({{"HASTEN_WATCH", "0"}})), nullptr);
}

TEST_F(RankWatchTest, AWorldOfOneIsWatchedUnderALauncherUntilItsLastProcessEnds) {
  flight::announce(page_, {.rank = 0, .world_size = 1});
  const Environment alone = Environment::of({{"HASTEN_FLIGHT_FD", text(page_.descriptor())}});

  auto first = std::optional<Process>(std::in_place, ProcessOptions{.cpu = true}, alone);
  auto second = std::optional<Process>(std::in_place, ProcessOptions{.cpu = true}, alone);
  first.reset();

  EXPECT_EQ(state(), flight::PageState::kRunning);
  EXPECT_EQ(flight::PageView(page_.descriptor()).read().world_size, 1);
  second.reset();
  EXPECT_EQ(state(), flight::PageState::kLeft);
  const Process third({.cpu = true}, alone);
  EXPECT_EQ(state(), flight::PageState::kRunning);
}

TEST_F(RankWatchTest, AWorldOfOneStartedByHandHasNoPage) {
  const Process process({.cpu = true}, Environment::of({}));

  EXPECT_EQ(flight::process_recorder(), nullptr);
}

TEST_F(RankWatchTest, AVariableThatCannotBeUnderstoodIsRefused) {
  EXPECT_THROW(watch_rank(environment({{"HASTEN_HANG_AFTER", "soon"}})), UsageError);
}

}  // namespace
}  // namespace hasten::process
