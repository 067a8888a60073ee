#include "hasten/comm/monitored_barrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/c10d/monitored_barrier.h"
#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

TEST(MonitoredBarrierRanks, AllPassItAgainAndAgainAndInSubgroups) {
  run_ranks(3, [](Process& process) {
    for (int i = 0; i < 3; ++i) monitored_barrier(process.group());
    if (const auto pair = process.group().subgroup({0, 2})) monitored_barrier(*pair);
    monitored_barrier(process.group(), {.wait_all_ranks = true});
  });
  monitored_barrier(Group());
}

TEST(MonitoredBarrierRanks, TheErrorNamesTheRanksThatDoNotCome) {
  const MonitoredBarrierOptions options{.timeout = std::chrono::milliseconds(100), .wait_all_ranks = true};
  const auto words = run_ranks_collecting(4, [&](Process& process) {
    const auto expect_words = [&](const std::string& words) {
      EXPECT_THAT([&] { monitored_barrier(process.group(), options); },
                  ::testing::ThrowsMessage<CommError>(HasSubstr(words)));
    };
    if (process.rank() == 0) expect_words("Ranks 1, 2 failed to pass monitoredBarrier in 100 ms");
    if (process.rank() == 3)
      expect_words("[Rank 3]: Rank 3 successfully reached monitoredBarrier, but received errors");
    process.group().barrier();
  });

  EXPECT_EQ(words, std::vector<std::string>(4));
}

TEST(MonitoredBarrierRanks, RankZeroStaysUntilTheOthersHaveReadTheVerdict) {
  run_ranks(2, [&](Process& process) {
    const Store keys = process.group().store()->scoped("by_hand");
    if (process.rank() == 0) {
      pass_monitored_barrier({.keys = keys, .rank = 0, .world_size = 2, .timeout = std::chrono::minutes(1)});
      EXPECT_TRUE(keys.get("read/1").has_value());
    } else {
      keys.set("rank/1", "");
      keys.wait({"verdict"});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 0 would be gone by now
      keys.set("read/1", "");
    }
    process.group().barrier();
  });
}

}  // namespace
}  // namespace hasten::comm
