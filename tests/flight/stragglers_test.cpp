#include "hasten/flight/stragglers.h"

#include <gtest/gtest.h>

#include <random>

#include "flight/worlds.h"

namespace hasten::flight {
namespace {

using testing::MadeRun;

/// Four ranks with steps of 100 ms, of which rank `late` waits 10 ms and the others 10 + `by_s`.
PaceWindow window(int late, double by_s) {
  PaceWindow paces;
  for (int rank = 0; rank < 4; ++rank) {
    paces.push_back({.rank = rank, .step_s = 0.1, .waited_s = rank == late ? 0.01 : 0.01 + by_s});
    paces.back().phases_s = {{"data", 0.018}, {"backward", 0.05}};
  }
  return paces;
}

TEST(Stragglers, TheRankThatWaitsLeastCostsTheRunWhatTheOthersWait) {
  const auto found = find_straggler({window(2, 0.03), window(2, 0.03), window(2, 0.03), window(2, 0.03)});

  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(describe(*found), "rank 2 costs the run 30 %: the others wait 30 ms a step for it");
}

TEST(Stragglers, APhaseIsTheCauseIfItExplainsMostOfTheDelay) {
  auto windows = std::vector<PaceWindow>(4, window(3, 0.041));
  for (PaceWindow& paces : windows) paces[3].phases_s["data"] = 0.056;

  EXPECT_EQ(describe(*find_straggler(windows)),
            "rank 3 costs the run 41 %: the others wait 41 ms a step for it; it has 38 ms more of data (56 ms, others "
            "18 ms)");

  for (PaceWindow& paces : windows) paces[3].phases_s["data"] = 0.045;  // 27 of 41 ms
  EXPECT_EQ(find_straggler(windows)->cause, "");
}

TEST(Stragglers, LessCpuSaysMoreThanThePhaseInWhichItIsMissing) {
  auto windows = std::vector<PaceWindow>(4, window(0, 0.04));
  for (PaceWindow& paces : windows) {
    paces[0].phases_s["backward"] = 0.095;
    paces[0].delayed_s = 0.038;
  }

  EXPECT_EQ(find_straggler(windows)->cause, "less CPU");
}

TEST(Stragglers, OneBadWindowOrAnotherRankEachTimeIsNone) {
  EXPECT_FALSE(find_straggler({window(1, 0), window(1, 0), window(1, 0), window(1, 0.03)}));
  EXPECT_FALSE(find_straggler({window(0, 0.03), window(1, 0.03), window(2, 0.03), window(3, 0.03)}));
  EXPECT_FALSE(find_straggler({window(2, 0.03), window(2, 0.03)})) << "too few windows";
  EXPECT_TRUE(find_straggler({window(2, 0.03), window(1, 0.03), window(2, 0.03), window(2, 0.03)}));
  EXPECT_FALSE(find_straggler(std::vector<PaceWindow>(4, window(2, 0.004)))) << "below 5 % of a step";
}

TEST(Stragglers, RandomRunsNameTheSlowRankAndEvenOnesNone) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 0.001);
  for (int trial = 0; trial < 1000; ++trial) {
    const int late = trial % 2 == 0 ? trial / 2 % 4 : -1;
    std::vector<PaceWindow> windows;
    for (int i = 0; i < 4; ++i) {
      windows.push_back(window(late, late < 0 ? 0 : 0.02));
      for (RankPace& pace : windows.back()) pace.waited_s += noise(random);
    }

    const auto found = find_straggler(windows);

    EXPECT_EQ(found ? found->rank : -1, late) << "trial " << trial;
  }
}

TEST(Stragglers, WindowsEndWhenEveryRankHasMadeTheirSteps) {
  MadeRun run(2);
  StragglerWatch watch(50);
  const auto at = [&](int64_t first, int64_t second, double time_s) {
    run[0].step = first, run[1].step = second;
    run[0].waited_s = 0.001 * static_cast<double>(first), run[1].waited_s = 0.05 * static_cast<double>(second);
    run[0].read_at_s = run[1].read_at_s = time_s;
    return watch.add(run.all);
  };

  EXPECT_FALSE(at(100, 100, 0));
  EXPECT_FALSE(at(150, 149, 10)) << "rank 1 has made 49";
  EXPECT_TRUE(at(151, 150, 10.2));
  EXPECT_TRUE(at(201, 200, 20.2));
  EXPECT_FALSE(watch.find());
  EXPECT_TRUE(at(251, 250, 30.2));

  ASSERT_TRUE(watch.find());
  EXPECT_EQ(watch.find()->rank, 0);
  EXPECT_NEAR(watch.find()->step_s, 0.2, 1e-9);
  EXPECT_NEAR(watch.find()->late_s, 0.049, 1e-9);

  run[1].pid = 999;  // begun anew
  EXPECT_FALSE(at(301, 300, 40.2));
  EXPECT_FALSE(watch.find());
}

}  // namespace
}  // namespace hasten::flight
