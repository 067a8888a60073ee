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

TEST(Snapshot, RanksAreListedInRanges) {
  EXPECT_EQ(rank_list({3, 1, 0}), "0 1 3");
  EXPECT_EQ(rank_list({0, 1, 2, 3, 7}), "0-3 7");
  EXPECT_EQ(rank_list({2}), "2");
  EXPECT_EQ(rank_list({}), "");
}

}  // namespace
}  // namespace hasten::flight
