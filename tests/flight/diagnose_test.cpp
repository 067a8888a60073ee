#include "hasten/flight/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "flight/worlds.h"
#include "hasten/core/env.h"
#include "hasten/flight/report.h"

namespace hasten::flight {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kWorld;
using testing::MadeRun;

std::string notes_of(const Diagnosis& found) {
  return join(found.notes, "; ");
}

// ---- The table of hangs: its culprit is named, and no other rank.

TEST(Hang, ASkippedCollectiveIsARankThatMakesAnotherCall) {
  MadeRun run(4);
  for (const int rank : {0, 1, 3}) run.call(rank, 1.5);
  run.barrier(2, 1.2, "loop.cpp:9");

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kDiffer);
  EXPECT_TRUE(found->certain);
  EXPECT_THAT(found->culprits, ElementsAre(2));
  EXPECT_THAT(notes_of(*found), HasSubstr("rank 2 calls barrier at loop.cpp:9"));
  EXPECT_THAT(notes_of(*found), HasSubstr("ranks 0 1 3 call all_reduce(sum) of float32 [1024] at train.cpp:41"));
}

TEST(Hang, TwoSwappedCollectivesNameBothSidesInATie) {
  MadeRun run(2);
  run.barrier(0, 2, "a.cpp:1");
  run.call(1, 2, "broadcast of int64", "a.cpp:2").root = 0;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kDiffer);
  EXPECT_THAT(found->culprits, ElementsAre(0, 1));
}

TEST(Hang, ABarrierTooManyIsFoundWhereTheCallsPart) {
  MadeRun run(4);
  for (int rank = 0; rank < 4; ++rank) run.call(rank);
  run.barrier(0, {}, "save.cpp:498");  // if (main) save()
  for (const int rank : {1, 2, 3}) run.barrier(rank, {}, "train.cpp:520");
  for (const int rank : {1, 2, 3}) run.call(rank);
  run.call(0);
  run.barrier(0, 9, "train.cpp:520");

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kMissing);
  EXPECT_THAT(found->culprits, ElementsAre(1, 2, 3));
  EXPECT_THAT(notes_of(*found),
              HasSubstr("the calls part at number 2: rank 1 at train.cpp:520, rank 0 at save.cpp:498"));
}

TEST(Hang, TwoGroupsInOppositeOrderAreACircle) {
  MadeRun run(2);
  run.group(7, "a", {0, 1});
  run.group(8, "b", {0, 1});
  run.call(0, 2, "all_reduce(sum) of float32", "x.cpp:1", {1}, 7);
  run.call(1, 2, "all_reduce(sum) of float32", "x.cpp:2", {1}, 8);

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kCycle);
  EXPECT_TRUE(found->certain);
  EXPECT_THAT(found->culprits, ElementsAre(0, 1));
  EXPECT_THAT(notes_of(*found), HasSubstr("rank 0 waits for rank 1 in all_reduce 1 of 'a'"));
  EXPECT_THAT(notes_of(*found), HasSubstr("rank 1 waits for rank 0 in all_reduce 1 of 'b'"));
}

TEST(Hang, ARingOfSendsIsACircleWithPeersTagsAndLines) {
  MadeRun run(4);
  for (const int rank : {0, 1, 2}) run.message(rank, CallKind::kSend, (rank + 1) % 3, 5, 3, text("ring.cpp:", rank));
  run.call(3, 3);

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kCycle);
  EXPECT_THAT(found->culprits, ElementsAre(0, 1, 2));
  EXPECT_THAT(found->waiting, ElementsAre(3));
  EXPECT_THAT(notes_of(*found), HasSubstr("rank 2 waits for rank 0 in send 1 to 0 (tag 5) of 'world' at ring.cpp:2"));
}

TEST(Hang, AnotherShapeOfALargeTensorNamesBothCalls) {
  MadeRun run(4);
  for (const int rank : {0, 1, 2}) run.call(rank, 1.1);
  run.call(3, 1.1, "all_reduce(sum) of float32", "train.cpp:41", {1000});

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kDiffer);
  EXPECT_THAT(found->culprits, ElementsAre(3));
  EXPECT_THAT(notes_of(*found), HasSubstr("[1000]"));
}

TEST(Hang, FirstSizesMayDifferWhereTheOperationAllowsIt) {
  MadeRun run(2);
  run.call(0, 2, "all_gather of float32", "a.cpp:1", {3, 4}).rule = SizesRule::kFirstMayDiffer;
  run.call(1, 2, "all_gather of float32", "a.cpp:1", {5, 4}).rule = SizesRule::kFirstMayDiffer;

  EXPECT_FALSE(diagnose(run.all)) << "all have made the call, and its data may be on their way";
}

TEST(Hang, UnevenBatchesNameTheStepsOfBothSides) {
  MadeRun run(4);
  for (const int rank : {0, 1, 3}) run.call(rank, 1.4);
  run.barrier(2, 1.4, "train.cpp:60");
  run[2].step = 299;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_THAT(found->culprits, ElementsAre(2));
  EXPECT_THAT(notes_of(*found), HasSubstr("rank 2 is in step 300 of epoch 2, rank 0 in step 301 of epoch 2"));
}

TEST(Hang, ARankThatReturnedEarlyHasEndedWell) {
  MadeRun run(4);
  for (const int rank : {0, 1, 2}) run.call(rank, 1.2);
  run[3].life = Life::kEnded;
  run[3].state = PageState::kLeft;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kEnded);
  EXPECT_TRUE(found->certain);
  EXPECT_THAT(found->culprits, ElementsAre(3));
  EXPECT_THAT(found->waiting, ElementsAre(0, 1, 2));
  EXPECT_EQ(why(run[3]), "has ended in order");
}

TEST(Hang, ARankWhoseProcessObjectIsGoneIsCertain) {
  MadeRun run(2);
  run.call(0, 1.2);
  run[1].state = PageState::kLeft;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_TRUE(found->certain);
  EXPECT_THAT(found->culprits, ElementsAre(1));
  EXPECT_THAT(why(run[1]), HasSubstr("has left the run"));
}

TEST(Hang, ASwallowedExceptionIsARankOneStepAhead) {
  MadeRun run(4);
  for (const int rank : {0, 1, 3}) run.call(rank, 2, "all_reduce(sum) of float32", "bucket.cpp:131", {100});
  run.call(2, 2, "all_reduce(sum) of float32", "bucket.cpp:131", {700});
  run[2].step = 301;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_THAT(found->culprits, ElementsAre(2));
  EXPECT_THAT(notes_of(*found), HasSubstr("rank 2 is in step 302"));
}

TEST(Hang, AnEndlessLoopComputes) {
  MadeRun run(4);
  for (const int rank : {0, 1, 3}) run.call(rank, 5.4);
  run[2].phase = "backward";
  run.facts(2, 'R', "", 0.99);
  run[2].stack = "find_root (loss.cpp:58) < main (train.cpp:77)";

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_FALSE(found->certain);
  EXPECT_TRUE(found->computes);
  EXPECT_THAT(found->culprits, ElementsAre(2));
  EXPECT_EQ(hang_line(run.all, *found),
            "hasten: ranks 0 1 3 wait for rank 2 in all_reduce 1 of 'world' for 5.4 s; it computes in backward: "
            "find_root (loss.cpp:58)\n");
}

TEST(Hang, AMutexThatIsLockedTwiceSleepsInALock) {
  MadeRun run(4);
  for (const int rank : {0, 1, 3}) run.call(rank, 5.4);
  run.facts(2, 'S', "sleeps in a lock");

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_FALSE(found->computes);
  EXPECT_EQ(why(run[2]), "sleeps in a lock");
}

TEST(Hang, ADatasetThatBlocksNamesThePathOfTheWorkerThread) {
  MadeRun run(2);
  run.call(0, 6);
  run[1].phase = "data";
  run.facts(1, 'S', "sleeps in a lock");
  run.thread(1, "waits for a file or socket");
  run.thread(1, "reads /data/part-7.idx");

  ASSERT_TRUE(diagnose(run.all));
  EXPECT_EQ(why(run[1]), "waits for data; a worker thread reads /data/part-7.idx");
}

TEST(Hang, AStoppedAndATracedRankAreCertainAfterASecond) {
  for (const bool traced : {false, true}) {
    MadeRun run(4);
    for (const int rank : {0, 1, 2}) run.call(rank, 1.1);
    run[3].life = traced ? Life::kTraced : Life::kStopped;
    run[3].tracer = "gdb (412)";

    const auto found = diagnose(run.all);

    ASSERT_TRUE(found);
    EXPECT_TRUE(found->certain);
    EXPECT_THAT(found->culprits, ElementsAre(3));
    EXPECT_EQ(why(run[3]), traced ? "is held by gdb (412)" : "is stopped; kill -CONT 103 lets it go on");
  }
}

TEST(Hang, ARankThatIsStoppedInsideTheCallIsNamed) {
  MadeRun run(3);
  for (int rank = 0; rank < 3; ++rank) run.call(rank, 1.5);
  run[1].life = Life::kStopped;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_TRUE(found->certain);
  EXPECT_THAT(found->culprits, ElementsAre(1));
}

TEST(Hang, AReaderOfStandardOutputThatIsStopped) {
  MadeRun run(2);
  run.call(0, 6);
  run.facts(1, 'S', "writes fd 1, a pipe");

  ASSERT_TRUE(diagnose(run.all));
  EXPECT_EQ(why(run[1]), "writes fd 1, a pipe");
}

TEST(Hang, AFileServerThatDoesNotAnswer) {
  MadeRun run(2);
  run.call(0, 6);
  run.facts(1, 'D', "opens /net/model.bin");

  ASSERT_TRUE(diagnose(run.all));
  EXPECT_THAT(why(run[1]), HasSubstr("(D): it opens /net/model.bin"));
}

TEST(Hang, AStarvedRankHasNoCoreAndAThrottledOneItsCgroup) {
  MadeRun run(2);
  run.facts(0, 'R', "", 0.01);
  run[0].facts->throttled_periods = 40;
  run.facts(1, 'R', "", 0.01);
  run[1].facts->delayed_share = 0.97;

  EXPECT_EQ(why(run[0]), "is throttled by its cgroup: it gets 1 % of a core");
  EXPECT_EQ(why(run[1]), "gets 1 % of a core; other processes have the rest");
  EXPECT_TRUE(is_kept_short(run[0]) && is_kept_short(run[1]));
  run.facts(1, 'R', "", 0.9);
  EXPECT_FALSE(is_kept_short(run[1])) << "it computes";
  EXPECT_FALSE(computes(run[0]));
}

TEST(Hang, ARankWithoutMemoryIsAtItsLimitOrTheMachineSwaps) {
  MadeRun run(3);
  run.facts(0, 'D', "", 0.01);
  run[0].facts->memory_share = 0.97;
  run[0].facts->is_at_memory_limit = true;
  run.facts(1, 'R', "", 0.1);
  run[1].facts->memory_share = 0.8;
  run.facts(2, 'D', "reads /data/a.bin", 0.01);
  run[2].facts->memory_share = 0.97;  // of others on the machine

  EXPECT_EQ(why(run[0]), "is throttled by its cgroup: its memory is at the limit (memory.high)");
  EXPECT_THAT(why(run[1]), HasSubstr("waits for memory: the machine swaps"));
  EXPECT_THAT(why(run[2]), HasSubstr("it reads /data/a.bin"));
  EXPECT_FALSE(computes(run[1]));
}

TEST(Hang, AForkWithThreadsWaitsForItsChild) {
  MadeRun run(2);
  run.facts(1, 'S', "waits for child 4711");

  EXPECT_EQ(why(run[1]), "waits for child 4711");
}

TEST(Hang, ARankThatHasNotComeToTheMeetingIsMissingAfterTheLongTimeOfTheStart) {
  MadeRun run(2);
  for (int rank = 0; rank < 2; ++rank) run[rank].step_times_s.clear();
  run[1].groups.clear();
  run[1].progress_s = 40;
  run.facts(1, 'S', "asks a name server (port 53)");
  const auto meeting = [&](double waits_s) {
    run[0].calls = {{.group = kWorld, .kind = CallKind::kMeeting, .label = "connect", .waits_s = waits_s}};
    run[0].progress_s = waits_s;
  };

  meeting(29);
  EXPECT_FALSE(diagnose(run.all));
  meeting(31);
  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_THAT(found->culprits, ElementsAre(1));
  EXPECT_THAT(hang_report(run.all, *found), HasSubstr("rank 1 asks a name server (port 53)."));
}

TEST(Hang, DroppedPacketsAreTheTransport) {
  MadeRun run(4);
  for (int rank = 0; rank < 4; ++rank) run.call(rank, 6);
  const auto before = diagnose(run.all);
  run.facts(1, 'S', "sleeps in a lock");
  run[1].facts->connections = {{"10.0.0.3:4711", 65536, 5, 5.2}};

  const auto found = diagnose(run.all);

  ASSERT_TRUE(before && found);
  EXPECT_EQ(found->key(), before->key()) << "it is the same standstill before the ranks were asked";
  EXPECT_EQ(found->cause, Cause::kTransport);
  EXPECT_FALSE(found->computes);
  EXPECT_THAT(found->culprits, ElementsAre(1));
  EXPECT_THAT(notes_of(*found), HasSubstr("rank 1 -> 10.0.0.3:4711: 65536 bytes are unacknowledged for 5.2 s"));
}

TEST(Hang, RanksThatAllWaitForDataAreIdle) {
  MadeRun run(2);
  for (int rank = 0; rank < 2; ++rank) {
    run[rank].phase = "data";
    run.facts(rank, 'S', "reads /net/data.bin");
  }

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kIdle);
  EXPECT_THAT(found->culprits, ElementsAre(0, 1));
}

TEST(Hang, AChainEndsAtItsLastRank) {
  MadeRun run(4);
  run.group(7, "left", {0, 1});
  run.group(8, "right", {1, 2});
  run.call(0, 6, "all_reduce(sum) of float32", "x.cpp:1", {1}, 7);
  run.call(1, 6, "all_reduce(sum) of float32", "x.cpp:2", {1}, 8);
  run[3].progress_s = 0.1;

  const auto found = diagnose(run.all);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->cause, Cause::kMissing);
  EXPECT_THAT(found->culprits, ElementsAre(2));
}

// ---- Nothing is said.

TEST(NoHang, WhileTheOneThatIsWaitedForMakesProgress) {
  MadeRun run(4);
  for (const int rank : {1, 2, 3}) run.call(rank, 100);
  run[0].progress_s = 0.5;

  EXPECT_FALSE(diagnose(run.all));
}

TEST(NoHang, BeforeTenStepsOfTheRun) {
  MadeRun run(2);
  for (int rank = 0; rank < 2; ++rank) run[rank].step_times_s = std::vector<double>(32, 2.0);
  run[1].progress_s = 19;
  run.call(0, 19);
  EXPECT_FALSE(diagnose(run.all));

  EXPECT_EQ(hang_after_s(run.all, {}), 20);
  EXPECT_EQ(hang_after_s(run.all, {.after_s = 3}), 3);
  EXPECT_TRUE(diagnose(run.all, {.after_s = 3}));
  EXPECT_EQ(hang_after_s(MadeRun(1).all, {}), 5);
}

TEST(NoHang, WhereNoRankWaitsAndAllCompute) {
  MadeRun run(2);
  for (int rank = 0; rank < 2; ++rank) run[rank].progress_s = 3600;

  EXPECT_FALSE(diagnose(run.all));
}

// ---- Worlds of chance.

struct Chance {
  int size;
  std::vector<std::vector<int>> groups;
  std::vector<int> program;  // groups in the order of their calls
};

Chance draw(std::mt19937_64& random) {
  Chance world{.size = 2 + static_cast<int>(random() % 7), .groups = {}, .program = {}};
  const size_t num_groups = 1 + random() % 4;
  while (world.groups.size() < num_groups) {
    std::vector<int> members;
    for (int rank = 0; rank < world.size; ++rank) {
      if (world.groups.empty() || random() % 2 == 0) members.push_back(rank);
    }
    if (members.size() > 1) world.groups.push_back(members);
  }
  for (int i = 0; i < 12; ++i) world.program.push_back(static_cast<int>(random() % world.groups.size()));
  return world;
}

// Every rank makes the calls of its groups in one order; the culprit makes only the first ones.
MadeRun play(const Chance& world, int culprit, int last_call, std::mt19937_64& random) {
  MadeRun run(world.size);
  for (size_t i = 0; i < world.groups.size(); ++i) run.group(10 + i, text("g", i), world.groups[i]);
  std::vector<size_t> next(static_cast<size_t>(world.size), 0);
  std::vector<std::set<int>> posted(world.program.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < world.size; ++rank) {
      size_t& at = next[static_cast<size_t>(rank)];
      while (at < world.program.size()) {
        const auto& members = world.groups[static_cast<size_t>(world.program[at])];
        const bool is_member = std::find(members.begin(), members.end(), rank) != members.end();
        if (is_member && rank == culprit && static_cast<int>(at) >= last_call) break;
        if (is_member) moved = posted[at].insert(rank).second || moved;
        if (is_member && posted[at].size() < members.size()) break;
        ++at;
        moved = true;
      }
    }
  }
  const double since = 6 + static_cast<double>(random() % 100);
  for (int rank = 0; rank < world.size; ++rank) {
    const size_t end = next[static_cast<size_t>(rank)];
    for (size_t at = 0; at < world.program.size() && at <= end; ++at) {
      if (!posted[at].contains(rank)) continue;
      run.call(rank, at == end ? std::optional(since) : std::nullopt, "all_reduce(sum) of float32", "x.cpp:1", {1},
               10 + static_cast<uint64_t>(world.program[at]));
    }
    run[rank].progress_s = since;
  }
  return run;
}

TEST(Hang, TheCulpritOfWorldsOfChanceIsNamed) {
  const auto scale = Environment::current().integer("HASTEN_TEST_SCALE", 1).value_or(1);
  const uint64_t seed = 20250417;
  std::mt19937_64 random(seed);
  int64_t hangs = 0, named = 0;
  for (int64_t round = 0; round < 20000 * scale; ++round) {
    const Chance world = draw(random);
    const int culprit = static_cast<int>(random() % static_cast<uint64_t>(world.size));
    MadeRun run = play(world, culprit, static_cast<int>(random() % 12), random);
    const bool hangs_here = std::any_of(run.all.ranks.begin(), run.all.ranks.end(), [](const RankState& rank) {
      return std::any_of(rank.calls.begin(), rank.calls.end(), [](const CallState& call) { return call.waits_s; });
    });
    const bool stopped = random() % 2 == 0;
    if (stopped) run[culprit].life = Life::kStopped;
    const auto found = diagnose(run.all);
    if (!hangs_here) {
      EXPECT_FALSE(found) << "seed " << seed << " round " << round;
      continue;
    }
    ++hangs;
    if (!found) continue;
    named += found->culprits == std::vector<int>{culprit};
    if (!found->certain) continue;
    ASSERT_THAT(found->culprits, ElementsAre(culprit)) << "seed " << seed << " round " << round;
  }
  EXPECT_GT(hangs, 1000);
  EXPECT_GE(static_cast<double>(named), 0.99 * static_cast<double>(hangs)) << named << " of " << hangs;
}

}  // namespace
}  // namespace hasten::flight
