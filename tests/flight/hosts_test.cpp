#include "hasten/flight/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flight/worlds.h"
#include "hasten/flight/diagnose.h"
#include "hasten/flight/report.h"

namespace hasten::flight {
namespace {

using testing::MadeRun;

/// Keys in memory, which several hosts share.
struct SharedKeys {
  std::map<std::string, std::string> values;
};

class KeysLink : public HostLink {
 public:
  explicit KeysLink(SharedKeys& keys) : keys_(keys) {}
  void set(const std::string& key, const std::string& value) override { keys_.values[key] = value; }
  std::optional<std::string> get(const std::string& key) override {
    const auto found = keys_.values.find(key);
    return found == keys_.values.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  SharedKeys& keys_;
};

Snapshot part_of(const Snapshot& all, int first, int count) {
  Snapshot part{.world_size = all.world_size};
  for (int rank = first; rank < first + count; ++rank) part.ranks.push_back(all.ranks[static_cast<size_t>(rank)]);
  return part;
}

/// Four ranks on two hosts: 0, 1 and 3 wait in all_reduce 3, in which 2 is missing.
MadeRun hanging() {
  MadeRun run(4);
  for (int rank = 0; rank < 4; ++rank) run.call(rank), run.call(rank);
  for (const int rank : {0, 1, 3}) run.call(rank, 8);
  run.facts(2, 'S', "sleeps in a lock");
  run[2].stack = "lock_stats (loss.cpp:58)";
  return run;
}

TEST(Hosts, NewsComeAsTheyWereTold) {
  const MadeRun run = hanging();

  const HostNews news = decode_news(encode_news({.beat = 3, .answered = 2, .snapshot = run.all}));

  EXPECT_EQ(news.beat, 3);
  EXPECT_EQ(news.answered, 2);
  const auto found = diagnose(run.all, {}), told = diagnose(news.snapshot, {});
  ASSERT_TRUE(found && told);
  EXPECT_EQ(hang_report(news.snapshot, *told), hang_report(run.all, *found));
}

TEST(Hosts, ARankOfAnotherHostIsNamedByTheLowestHost) {
  SharedKeys keys;
  Hosts first(std::make_unique<KeysLink>(keys), 0, 4), second(std::make_unique<KeysLink>(keys), 1, 4);
  const MadeRun run = hanging();
  const Snapshot here = part_of(run.all, 0, 2), there = part_of(run.all, 2, 2);
  EXPECT_FALSE(diagnose(here, {}) && diagnose(here, {})->culprits == std::vector<int>{2}) << "not known there";

  first.tell(here);
  second.tell(there);

  EXPECT_TRUE(first.compares(10));
  EXPECT_FALSE(second.compares(10));
  const auto found = diagnose(first.merge(here, 10), {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->culprits, std::vector<int>{2});
}

TEST(Hosts, AHostThatTellsNothingAnyMoreIsOutOfReachAndReplaced) {
  SharedKeys keys;
  Hosts first(std::make_unique<KeysLink>(keys), 0, 4), second(std::make_unique<KeysLink>(keys), 1, 4);
  MadeRun run = hanging();
  for (const int rank : {2, 3}) run[rank].node_rank = 1, run[rank].host = "node1";
  first.tell(part_of(run.all, 0, 2));
  second.tell(part_of(run.all, 2, 2));
  EXPECT_FALSE(second.compares(10));
  EXPECT_EQ(first.merge(part_of(run.all, 0, 2), 10).ranks.size(), 4u);

  EXPECT_TRUE(second.compares(19)) << "the first host has told nothing for 9 s";
  const Snapshot all = first.merge(part_of(run.all, 0, 2), 19);
  ASSERT_EQ(all.ranks.size(), 4u);
  EXPECT_EQ(all.ranks[1].life, Life::kRunning);
  EXPECT_EQ(all.ranks[2].life, Life::kSilent);
  const auto found = diagnose(all, {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->culprits, (std::vector{2, 3})) << "rank 3 has made the call, but is out of reach as well";
  EXPECT_THAT(hang_report(all, *found), ::testing::HasSubstr("rank 3 on node1 is out of reach: its host tells nothing"));

  first.tell(part_of(run.all, 0, 2));
  EXPECT_FALSE(second.compares(20));
}

TEST(Hosts, QuestionsAndKillsReachTheHostOnce) {
  SharedKeys keys;
  Hosts first(std::make_unique<KeysLink>(keys), 0, 4), second(std::make_unique<KeysLink>(keys), 1, 4);
  const MadeRun run = hanging();
  second.tell(part_of(run.all, 2, 2));
  EXPECT_FALSE(second.question());

  const int64_t question = first.ask();

  EXPECT_FALSE(first.question()) << "its own";
  EXPECT_FALSE(first.all_answered(question, 1));
  ASSERT_EQ(second.question(), question);
  second.tell(part_of(run.all, 2, 2), question);
  EXPECT_TRUE(first.all_answered(question, 2));
  EXPECT_FALSE(second.question());

  EXPECT_FALSE(second.rank_to_kill());
  first.ask_to_kill(2);
  EXPECT_EQ(second.rank_to_kill(), 2);
  EXPECT_FALSE(second.rank_to_kill());
}

}  // namespace
}  // namespace hasten::flight
