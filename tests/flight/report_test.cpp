#include "hasten/flight/report.h"

#include <gtest/gtest.h>

#include "flight/worlds.h"
#include "hasten/flight/snapshot.h"

namespace hasten::flight {
namespace {

using testing::MadeRun;

TEST(Report, ShowsWhoWaitsWhoIsMissingWhereAndWhy) {
  MadeRun run(4);
  for (int i = 0; i < 1203; ++i) {
    for (int rank = 0; rank < 4; ++rank) run.call(rank);
    for (int rank = 0; rank < 4; ++rank) run[rank].calls.erase(run[rank].calls.begin(), run[rank].calls.end() - 1);
  }
  for (const int rank : {0, 1, 3}) {
    run.call(rank, 5.4, "all_reduce(sum) of float32", "bucket.cpp:131", {1048576});
    run.facts(rank, 'S', "sleeps in a lock");
  }
  run[2].phase = "backward";
  run[2].progress_s = 5.6;
  run.facts(2, 'S', "sleeps in a lock");
  run[2].stack = "~lock_stats (loss.cpp:58) < train_step (train.cpp:41) < main (train.cpp:77)";

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(hang_report(run.all, *found),
            "╭ hasten: no progress for 5.4 s (a step takes 0.3 s): rank 2 of 4 is missing\n"
            "│ all_reduce 1204 of 'world': sum of float32 [1048576] at bucket.cpp:131, step 301, epoch 2\n"
            "│ rank   where                                   since    process\n"
            "│ 0 1 3  waits in all_reduce 1204                5.4 s    sleeping\n"
            "│ 2      backward; its last was all_reduce 1203  5.6 s    sleeps in a lock\n"
            "│ rank 2, main thread: ~lock_stats (loss.cpp:58) < train_step (train.cpp:41) < main (train.cpp:77)\n"
            "╰ rank 2 sleeps in a lock. The others wait for it until their timeout (1800 s).\n");
}

TEST(Report, WhatAHostWaitsForOfItsDeviceIsNamed) {
  MadeRun run(3);
  for (const int rank : {0, 2}) run.call(rank, 5.4, "all_reduce(sum) of float32");
  run.facts(0, 'S', "waits for a value from its device (cudaStreamSynchronize)");
  run.facts(1, 'S', "sleeps in a lock");
  run.facts(2, 'R', "");

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  const std::string report = hang_report(run.all, *found);
  EXPECT_NE(report.find("│ 0      waits in all_reduce 1  5.4 s    waits for a value from its device "
                        "(cudaStreamSynchronize)\n│ 1 "),
            std::string::npos)
      << report;
  EXPECT_NE(report.find("│ 2      waits in all_reduce 1  5.4 s    computing\n"), std::string::npos) << report;
}

TEST(Report, ARankWhoseHostWaitsForItsDeviceComputes) {
  MadeRun run(2);
  run.call(0, 8, "barrier");
  run.facts(1, 'S', "waits for a copy from or to its device (cudaStreamSynchronize)");

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_TRUE(found->computes) << "kernels may run for long";
  EXPECT_EQ(hang_line(run.all, *found),
            "hasten: rank 0 waits for rank 1 in barrier 1 of 'world' for 8.0 s; it waits for a copy from or to its "
            "device (cudaStreamSynchronize)\n");
}

TEST(Report, InARunOnSeveralHostsTheCulpritsHostIsSaid) {
  MadeRun run(3);
  for (const int rank : {0, 1}) run.call(rank, 5.4, "barrier", "train.cpp:9");
  run[2].life = Life::kStopped;
  run[2].pid = 77;
  run[2].node_rank = 1;
  run[2].host = "node1";

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_NE(hang_report(run.all, *found).find("rank 2 on node1 is stopped; kill -CONT 77"), std::string::npos);
}

TEST(Report, ACallIsDescribedWithItsPurpose) {
  const CallState call{.number = 7,
                       .label = "broadcast of uint8",
                       .site = "reducer.cpp:12",
                       .purpose = "buffers, model",
                       .purpose_number = 2,
                       .sizes = {4, 3, 2, 1},
                       .dims = 6,
                       .root = 1};

  EXPECT_EQ(describe_call(call, nullptr),
            "broadcast 7: uint8 [4, 3, 2, 1, …], root 1 for buffers, model 2 at reducer.cpp:12");
}

TEST(Report, ARunWhoseRanksEndInOrderIsEnding) {
  MadeRun run(3);
  for (int rank = 0; rank < 3; ++rank) run[rank].progress_s = 1;
  EXPECT_EQ(run_state(run.all), "running");

  run[0].state = PageState::kLeft;
  run[0].life = Life::kEnded;
  EXPECT_EQ(run_state(run.all), "ending; rank 0 has left");

  run[1].progress_s = 12;
  EXPECT_EQ(run_state(run.all), "no progress of rank 1 for 12 s");

  run[2].life = Life::kEnded;
  EXPECT_EQ(run_state(run.all), "rank 2 was killed, or called exit");
  run[2].state = PageState::kFailed;
  EXPECT_EQ(run_state(run.all), "rank 2 has failed");

  run[1].life = Life::kStopped;
  EXPECT_EQ(run_state(run.all), "rank 1 stopped");
}

TEST(Report, ARunWithoutAProcessHasNoHastenInside) {
  MadeRun run(2);
  for (int rank = 0; rank < 2; ++rank) run[rank].state = PageState::kAnnounced;
  EXPECT_EQ(run_state(run.all), "no hasten inside");
}

TEST(Report, ARankThatHasMadeNoProcessIsNamedByItsProgram) {
  MadeRun run(3);
  run[1].state = PageState::kAnnounced;
  run[1].groups.clear();
  run[1].step = 0;
  for (const int rank : {0, 2}) run.call(rank, 40);
  run[1].progress_s = 40;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->culprits, std::vector<int>{1});
  EXPECT_EQ(hang_line(run.all, *found),
            "hasten: ranks 0 2 wait for rank 1 in all_reduce 1 of 'world' for 40 s; it has started its program, which "
            "has made no Process yet\n");
}

TEST(Snapshot, RanksAreListedInRanges) {
  EXPECT_EQ(rank_list({3, 1, 0}), "0 1 3");
  EXPECT_EQ(rank_list({0, 1, 2, 3, 7}), "0-3 7");
  EXPECT_EQ(rank_list({2}), "2");
  EXPECT_EQ(rank_list({}), "");
}

}  // namespace
}  // namespace hasten::flight
