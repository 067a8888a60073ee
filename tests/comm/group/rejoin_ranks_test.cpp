#include "hasten/comm/group/rejoin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <thread>

#include "hasten/comm/nested/objects.h"
#include "hasten/core/error.h"
#include "support/folder.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;
using testing::words_of;

constexpr std::chrono::seconds kSoon(20);

/// What every collective gives for one rank's own tensors.
std::vector<at::Tensor> results(const Group& group, const at::Tensor& x) {
  std::vector<at::Tensor> all;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    at::Tensor reduced = x.clone(), at_root = x.clone();
    group.all_reduce_(reduced, op);
    group.reduce_(at_root, 1, op);
    all.insert(all.end(), {reduced, at_root, group.reduce_scatter(x, op)});
  }
  const at::Tensor whole = x.to(at::kLong);
  for (const ReduceOp op : {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
    at::Tensor reduced = whole.clone();
    group.all_reduce_(reduced, op);
    all.push_back(reduced);
  }
  at::Tensor sent = x.clone(), flag = x.gt(2);
  group.broadcast_(sent, 0);
  group.all_reduce_(flag);
  all.insert(all.end(), {sent, flag});
  for (const auto& part : group.all_gather(x)) all.push_back(part);
  for (const auto& part : group.gather(x, 1)) all.push_back(part);
  for (const auto& part : group.all_to_all({x, x, x})) all.push_back(part);
  group.barrier();
  return all;
}

TEST(StandIn, GivesWhatEqualRanksGive) {
  std::vector<at::Tensor> expected;
  testing::run_ranks(3, [&](process::Process& process) {
    const auto mine = results(process.group(), torch::arange(6, at::kDouble));
    if (process.rank() == 1) expected = mine;
  });
  const Group alone = stand_in(1, 3, {});

  const auto found = results(alone, torch::arange(6, at::kDouble));

  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i << '\n' << found[i];
  EXPECT_TRUE(stands_in(alone));
  EXPECT_EQ(alone.backend_name(), "loopback");
}

TEST(StandIn, GivesItsOwnObjectsAndParts) {
  const Group alone = stand_in(1, 3, {});
  const std::vector<at::Tensor> parts{torch::full({1}, 5), torch::full({2}, 6), torch::full({3}, 7)};

  EXPECT_EQ(broadcast_object(alone, std::string("mine"), 1), "mine");
  EXPECT_EQ(gather_object(alone, 4), (std::vector<int>{4, 4, 4}));
  EXPECT_EQ(scatter_object(alone, std::vector<std::string>{"a", "bcd", "ef"}, 1), "bcd");
  EXPECT_TRUE(alone.scatter(parts, 1).equal(parts[1]));
}

// What only another rank has is not replaced by this rank's, which would part the ranks.
TEST(StandIn, RefusesWhatOnlyAnotherRankHas) {
  const Group alone = stand_in(1, 3, {});

  EXPECT_THAT(words_of<UsageError>([&] { broadcast_object(alone, std::string(), 0); }),
              HasSubstr("broadcast_object from rank 0 before the ranks have met"));
  EXPECT_THAT(words_of<UsageError>([&] { scatter_object(alone, std::vector<int>{}, 2); }),
              HasSubstr("scatter_object from rank 2 before the ranks have met"));
  EXPECT_THAT(words_of<UsageError>([&] { alone.scatter({}, 0); }),
              HasSubstr("scatter from rank 0 before the ranks have met"));
}

TEST(StandIn, RefusesMessagesByName) {
  const Group alone = stand_in(1, 3, {});
  at::Tensor x = torch::zeros({2});

  EXPECT_THAT(words_of<UsageError>([&] { alone.send(x, 2); }), HasSubstr("a message to rank 2 before the ranks"));
  EXPECT_THAT(words_of<UsageError>([&] { alone.receive_(x, 0); }), HasSubstr("a message from rank 0"));
}

/// Ranks as threads, whose groups stand in at first. `store` is theirs.
void run_standing_in(int world_size, const GroupOptions& options, const Store& store,
                     const std::function<void(const Group&, Meetings&)>& fn) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto meetings = std::make_shared<Meetings>([&](std::chrono::milliseconds) { return store; }, rank, false);
      fn(stand_in(rank, world_size, options, meetings), *meetings);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

void expect_connected(const Group& group) {
  at::Tensor x = torch::full({5}, group.rank() + 1, at::kDouble);
  group.all_reduce_(x);
  EXPECT_EQ(x[0].item<double>(), group.world_size() * (group.world_size() + 1) / 2);
}

TEST(Rejoin, ConnectsAllHandlesAndSubgroupsAgainAndAgain) {
  for (const BackendKind backend : {BackendKind::kAuto, BackendKind::kGloo}) {
    run_standing_in(3, {.backend = backend, .address = "127.0.0.1"}, Store::in_process(),
                    [](const Group& group, Meetings& meetings) {
                      const Group handle = group.with_check(true);
                      const auto pair = group.subgroup({2, 0});
                      const auto lazy = group.subgroup({0, 1, 2}, SubgroupOptions{.lazy = true});
                      for (int64_t meeting = 0; meeting < 3; ++meeting) {
                        meetings.meet(group, kSoon);

                        EXPECT_EQ(meetings.number(), meeting);
                        EXPECT_FALSE(stands_in(handle));
                        expect_connected(handle);
                        expect_connected(*lazy);
                        EXPECT_EQ(pair.has_value(), group.rank() != 1);
                        if (pair) expect_connected(*pair);
                      }
                    });
  }
}

TEST(Rejoin, ARankThatLeavesAMeetingEndsTheOthersCollectives) {
  run_standing_in(3, {.address = "127.0.0.1"}, Store::in_process(), [](const Group& group, Meetings& meetings) {
    meetings.meet(group, kSoon);
    if (group.rank() > 0) {
      EXPECT_THROW(group.barrier(), CommError);
      EXPECT_TRUE(is_broken(group));
    }

    meetings.meet(group, kSoon);

    EXPECT_FALSE(is_broken(group));
    expect_connected(group);
  });
}

TEST(Rejoin, WorkOfTheMeetingBeforeEndsWithAnErrorAndMayOutliveIt) {
  run_standing_in(2, {.backend = BackendKind::kGloo, .address = "127.0.0.1"}, Store::in_process(),
                  [](const Group& group, Meetings& meetings) {
                    meetings.meet(group, kSoon);
                    at::Tensor x = torch::ones({100000});
                    std::optional<Work<>> work;
                    if (group.rank() == 0) work = group.all_reduce_async_(x);

                    meetings.meet(group, kSoon);

                    if (work) {
                      EXPECT_THROW(work->wait(), CommError);
                    }
                    expect_connected(group);
                  });
}

TEST(Rejoin, NamesTheRanksThatDoNotCome) {
  run_standing_in(2, {.address = "127.0.0.1"}, Store::in_process(), [](const Group& group, Meetings& meetings) {
    if (group.rank() == 1) return;

    EXPECT_THAT(words_of<CommError>([&] { meetings.meet(group, std::chrono::milliseconds(300)); }),
                HasSubstr("rank 1 of 2 had not come"));
  });
}

TEST(Rejoin, RefusesAStoreOfAnotherLibrary) {
  const Store own = Store::tcp({.server = true});
  const Group group = stand_in(0, 2, {});

  EXPECT_THAT(words_of<UsageError>([&] { rejoin(group, Store::adopt(*own.native()).scoped("run"), kSoon); }),
              HasSubstr("Store::adopt"));
}

TEST(Generations, ATakenPlaceAsksForTheNextMeetingAndEndsTheOneBefore) {
  const Store store = Store::in_process();
  const auto open = [&](std::chrono::milliseconds) { return store; };
  Generations dead(open, 1), other(open, 0), successor(open, 1);

  const Store first = dead.enter(kSoon);
  other.enter(kSoon);
  successor.enter(kSoon);

  EXPECT_EQ(dead.number(), 0);
  EXPECT_EQ(other.number(), 0);
  EXPECT_EQ(successor.number(), 1);
  EXPECT_TRUE(first.get("hasten/failure"));
  other.enter(kSoon);
  EXPECT_EQ(other.number(), 1);
}

}  // namespace
}  // namespace hasten::comm
