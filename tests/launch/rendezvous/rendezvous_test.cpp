#include "hasten/launch/rendezvous/rendezvous.h"

#include <gmock/gmock.h>

#include "hasten/core/error.h"
#include "launch/rendezvous_world.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = Order::Kind;

constexpr TimePoint kStart = {};
TimePoint after(double seconds) {
  return later(kStart, Seconds(seconds));
}

NodeMessage joining(const std::string& id, int num_workers = 1, bool busy = false) {
  return {.kind = NodeMessage::Kind::kJoin,
          .node = {.id = id, .name = "host-" + id, .num_workers = num_workers},
          .busy = busy};
}
NodeMessage about(NodeMessage::Kind kind, int round, std::string words = "", int value = 0) {
  return {.kind = kind, .round = round, .value = value, .text = std::move(words)};
}

// What the host orders, one word each: "start b", "stop a"; notices are left out.
std::vector<std::string> words(const Rendezvous::Orders& orders) {
  static const char* const names[] = {"heartbeat", "notice", "choose", "start", "stop", "close", "drop"};
  std::vector<std::string> result;
  for (const Order& order : orders) {
    if (order.kind != Kind::kNotice) result.push_back(text(names[static_cast<int>(order.kind)], " ", order.to));
  }
  return result;
}
const Order& one(const Rendezvous::Orders& orders, Kind kind) {
  for (const Order& order : orders) {
    if (order.kind == kind) return order;
  }
  throw std::runtime_error("no such order");
}

// A run of `num_nodes` (a, b, …) in its first round.
Rendezvous running(RendezvousSettings settings, int num_nodes) {
  Rendezvous host(settings, kStart);
  for (int i = 0; i < num_nodes; ++i) {
    const std::string id(1, static_cast<char>('a' + i));
    host.on_message(id, joining(id), kStart);
  }
  const TimePoint end_of_window = later(kStart, settings.last_call_timeout);
  for (int i = 0; i < num_nodes; ++i) host.on_message(std::string(1, static_cast<char>('a' + i)), {}, end_of_window);
  host.on_time(end_of_window);
  host.on_message("a", about(NodeMessage::Kind::kMaster, 1, "10.0.0.1", 4000), end_of_window);
  return host;
}

TEST(Rendezvous, AFullHouseStartsAtOnceWithRanksInTheOrderOfArrival) {
  Rendezvous host({.min_nodes = 2, .max_nodes = 2}, kStart);

  EXPECT_THAT(words(host.on_message("b", joining("b", 3), kStart)), IsEmpty());
  EXPECT_THAT(words(host.on_message("a", joining("a", 2), kStart)), ElementsAre("choose b"));
  const auto orders = host.on_message("b", about(NodeMessage::Kind::kMaster, 1, "10.0.0.2", 4000), kStart);

  EXPECT_THAT(words(orders), ElementsAre("start b", "start a"));
  const Assignment& second = orders[1].assignment;
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.first_rank, 3);
  EXPECT_EQ(second.world_size, 5);
  EXPECT_EQ(second.num_nodes, 2);
  EXPECT_EQ(second.master_addr, "10.0.0.2");
  EXPECT_EQ(second.master_port, 4000);
  EXPECT_EQ(second.successors.front().id, "b");
}

TEST(Rendezvous, FurtherNodesAreWaitedForUntilTheLastCall) {
  Rendezvous host({.min_nodes = 1, .max_nodes = 3, .last_call_timeout = Seconds(4)}, kStart);

  EXPECT_THAT(words(host.on_message("a", joining("a"), kStart)), IsEmpty());
  EXPECT_THAT(words(host.on_message("b", joining("b"), after(3))), IsEmpty());
  EXPECT_EQ(host.deadline(), after(4));
  host.on_message("a", {}, after(3));

  EXPECT_THAT(words(host.on_time(after(4))), ElementsAre("choose a"));
}

TEST(Rendezvous, TooFewNodesEndTheRunAfterTheJoinTimeout) {
  Rendezvous host({.min_nodes = 2, .max_nodes = 2, .join_timeout = Seconds(3)}, kStart);
  host.on_message("a", joining("a"), kStart);

  EXPECT_THAT(words(host.on_time(after(2.9))), IsEmpty());
  const auto orders = host.on_time(after(3));

  EXPECT_EQ(one(orders, Kind::kClose).text, "only 1 node of at least 2 came within 3 s (join_timeout)");
  EXPECT_EQ(one(orders, Kind::kClose).value, 1);
}

TEST(Rendezvous, ANodeThatIsNotHeardIsLostAndTheOthersGoOnWithoutIt) {
  Rendezvous host = running({.min_nodes = 1, .max_nodes = 3}, 3);
  host.on_message("a", {}, after(34));
  host.on_message("c", {}, after(34));

  const auto orders = host.on_time(after(35));

  EXPECT_THAT(words(orders), ElementsAre("stop a", "stop c", "drop b"));
  EXPECT_EQ(one(orders, Kind::kStop).text, "node host-b was lost: nothing heard for 5 s");
  host.on_message("c", about(NodeMessage::Kind::kStopped, 1), after(36));
  EXPECT_THAT(words(host.on_message("a", about(NodeMessage::Kind::kStopped, 1), after(36))), ElementsAre("choose a"));
  const auto next = host.on_message("a", about(NodeMessage::Kind::kMaster, 2, "h", 1), after(36));
  EXPECT_THAT(words(next), ElementsAre("start a", "start c"));
  EXPECT_EQ(next[1].assignment.node_rank, 1);
  EXPECT_EQ(next[1].assignment.restart_count, 0);
}

TEST(Rendezvous, ANewNodeStopsTheRoundAndTakesPartInTheNext) {
  Rendezvous host = running({.min_nodes = 1, .max_nodes = 3}, 1);

  const auto orders = host.on_message("b", joining("b", 2), after(31));

  EXPECT_THAT(words(orders), ElementsAre("stop a"));
  EXPECT_EQ(one(orders, Kind::kStop).text, "node host-b joined");
  host.on_message("a", about(NodeMessage::Kind::kStopped, 1), after(31));
  const auto next = host.on_message("a", about(NodeMessage::Kind::kMaster, 2, "h", 1), after(31));
  EXPECT_EQ(next[1].assignment.world_size, 3);
}

TEST(Rendezvous, OneNodeTooManyWaitsUntilThereIsRoom) {
  Rendezvous host = running({.min_nodes = 1, .max_nodes = 2}, 2);

  const auto orders = host.on_message("c", joining("c"), after(1));
  EXPECT_EQ(one(orders, Kind::kNotice).text, "waiting: the run has its 2 nodes");
  EXPECT_THAT(words(orders), IsEmpty());
  EXPECT_THAT(words(host.on_lost("a", "closed", after(2))), ElementsAre("stop b"));

  host.on_message("b", about(NodeMessage::Kind::kStopped, 1), after(2));
  EXPECT_THAT(words(host.on_message("b", about(NodeMessage::Kind::kMaster, 2, "h", 1), after(2))),
              ElementsAre("start b", "start c"));
}

TEST(Rendezvous, AFailureIsToldToAllAndUsesUpARestart) {
  Rendezvous host = running({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .restart_delay = Seconds(2)}, 2);

  const auto orders =
      host.on_message("b", about(NodeMessage::Kind::kFailed, 1, "rank 1 failed: exit code 3", 3), kStart);

  EXPECT_THAT(words(orders), ElementsAre("stop a"));
  for (const Order& order : orders) EXPECT_EQ(order.text, "rank 1 failed: exit code 3 on node host-b; restart 1 of 1");
  host.on_message("b", about(NodeMessage::Kind::kStopped, 1, "box", 3), kStart);
  EXPECT_THAT(words(host.on_message("a", about(NodeMessage::Kind::kStopped, 1), kStart)), IsEmpty());
  EXPECT_THAT(words(host.on_time(after(2))), ElementsAre("choose a"));
  const auto next = host.on_message("a", about(NodeMessage::Kind::kMaster, 2, "h", 1), after(2));
  EXPECT_EQ(next[0].assignment.restart_count, 1);
}

TEST(Rendezvous, TheLastFailureEndsTheRunOnAllNodesWithItsReport) {
  Rendezvous host = running({.min_nodes = 2, .max_nodes = 2}, 2);
  host.on_message("b", about(NodeMessage::Kind::kFailed, 1, "rank 1 failed: exit code 3", 3), kStart);
  host.on_message("a", about(NodeMessage::Kind::kStopped, 1), kStart);

  const auto orders = host.on_message("b", about(NodeMessage::Kind::kStopped, 1, "box", 3), kStart);

  EXPECT_THAT(words(orders), ElementsAre("close a", "close b"));
  EXPECT_EQ(orders[0].value, 3);
  EXPECT_EQ(orders[0].text, "rank 1 failed: exit code 3 on node host-b");
  EXPECT_EQ(orders[0].report, "box");
}

TEST(Rendezvous, WorkersThatFailBecauseANodeIsLostAreNoFailure) {
  Rendezvous host = running({.min_nodes = 1, .max_nodes = 2, .max_restarts = 0}, 2);
  host.on_message("a", about(NodeMessage::Kind::kFailed, 1, "rank 0 failed: exit code 1", 1), after(30));
  host.on_message("a", about(NodeMessage::Kind::kStopped, 1, "box", 1), after(34));

  EXPECT_THAT(words(host.on_time(after(35))), ElementsAre("choose a", "drop b"));
}

TEST(Rendezvous, AllFinishedIsASuccessAndALateNodeDoesNotDisturb) {
  Rendezvous host = running({.min_nodes = 1, .max_nodes = 3}, 2);
  host.on_message("a", about(NodeMessage::Kind::kFinished, 1), after(1));

  EXPECT_THAT(words(host.on_message("c", joining("c"), after(1))), IsEmpty());
  const auto orders = host.on_message("b", about(NodeMessage::Kind::kFinished, 1), after(2));

  EXPECT_THAT(words(orders), ElementsAre("close a", "close b", "close c"));
  EXPECT_EQ(orders[0].value, 0);
  EXPECT_THAT(words(host.on_message("d", joining("d"), after(3))), ElementsAre("close d"));
}

TEST(Rendezvous, AHostThatTakesOverWaitsForThoseWhoShouldComeAndForTheirWorkers) {
  Rendezvous host({.min_nodes = 1, .max_nodes = 4}, kStart, {.round = 5, .restarts = 2, .expected = {"b", "c", "d"}});

  EXPECT_THAT(words(host.on_message("b", joining("b"), kStart)), IsEmpty());
  EXPECT_THAT(words(host.on_message("c", joining("c", 1, true), kStart)), IsEmpty());
  EXPECT_EQ(host.deadline(), after(5));  // b and c might be lost
  host.on_message("b", {}, after(6));
  host.on_message("c", {}, after(6));
  EXPECT_THAT(words(host.on_time(after(10))), IsEmpty());  // c is still busy
  const auto orders = host.on_message("c", about(NodeMessage::Kind::kStopped, 5), after(10));

  EXPECT_THAT(words(orders), ElementsAre("choose b"));
  EXPECT_EQ(one(orders, Kind::kChooseMaster).round, 6);
}

TEST(Rendezvous, EveryOrderOfEventsOfTwoNodesEndsForAllOrGoesOn) {
  const RendezvousSettings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  EXPECT_GT(World::walk(World(settings, 0, 2, {.kills = 1, .failures = 2})), 5000u);
  EXPECT_GT(World::walk(World(settings, 0, 2, {.kills = 1, .signals = 1})), 1000u);
}

TEST(Rendezvous, EveryOrderOfEventsOfThreeNodesEndsForAllOrGoesOn) {
  const RendezvousSettings settings{.min_nodes = 2, .max_nodes = 3, .max_restarts = 1};
  for (const Faults faults : {Faults{.kills = 1}, Faults{.failures = 1}, Faults{.signals = 1}}) {
    EXPECT_GT(World::walk(World(settings, 2, 3, faults)), 1000u);
  }
}

TEST(Rendezvous, EveryOrderOfEventsOfFourNodesEndsForAllOrGoesOn) {
  const RendezvousSettings settings{.min_nodes = 4, .max_nodes = 4};
  EXPECT_GT(World::walk(World(settings, 4, 4, {.kills = 1})), 1000u);
}

}  // namespace
}  // namespace hasten::launcher
