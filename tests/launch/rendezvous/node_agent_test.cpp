#include "launch/rendezvous/node_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint kNow = {};

NodeAgent connected(int num_workers = 1) {
  NodeAgent agent({.id = "a", .name = "gpu01", .num_workers = num_workers}, {.join_timeout = Seconds(9)}, kNow);
  agent.on_host_found(kNow);
  return agent;
}
Order starting(int round, int restarts = 0) {
  return {
      .kind = Order::Kind::kStart,
      .round = round,
      .assignment = {
          .round = round, .restart_count = restarts, .node_rank = 1, .num_nodes = 2, .first_rank = 4, .world_size = 8}};
}
Order stopping(int round) {
  return {.kind = Order::Kind::kStop, .round = round, .text = "node gpu02 joined"};
}
NodeAgent running(int num_workers = 1) {
  NodeAgent agent = connected(num_workers);
  agent.on_order(starting(1), kNow);
  return agent;
}

TEST(NodeAgent, JoinsWithWhatItKnowsAndStartsItsWorkersAsOrdered) {
  NodeAgent agent({.id = "a", .name = "gpu01", .num_workers = 4}, {}, kNow);

  const AgentActions joining = agent.on_host_found(kNow);
  const AgentActions started = agent.on_order(starting(3, 2), kNow);

  ASSERT_EQ(joining.messages.size(), 1u);
  EXPECT_EQ(joining.messages[0].node.id, "a");
  EXPECT_FALSE(joining.messages[0].busy);
  EXPECT_THAT(started.lines, ElementsAre("round 3: 2 nodes, world size 8; this is node 1 with ranks 4 to 7"));
  EXPECT_EQ(started.start->restart_count, 2);
  EXPECT_EQ(agent.restarts(), 2);
}

TEST(NodeAgent, StopsInOrderSaysWhyAndTellsWhenNobodyIsLeft) {
  NodeAgent agent = running();

  const AgentActions stopped = agent.on_order(stopping(1), kNow);
  const AgentActions gone = agent.on_workers_gone(143, "");

  EXPECT_TRUE(stopped.stop_workers);
  EXPECT_THAT(stopped.lines, ElementsAre("node gpu02 joined"));
  EXPECT_EQ(gone.messages[0].kind, NodeMessage::Kind::kStopped);
}

TEST(NodeAgent, AnOrderOfAnEarlierRoundIsTooLate) {
  NodeAgent agent = running();
  agent.on_order(stopping(1), kNow);
  agent.on_workers_gone(143, "");
  agent.on_order(starting(2), kNow);

  EXPECT_FALSE(agent.on_order(stopping(1), kNow).stop_workers);
}

TEST(NodeAgent, WorkersThatAllEndWithZeroAreFinished) {
  NodeAgent agent = running();

  const AgentActions gone = agent.on_workers_gone(0, "");

  EXPECT_EQ(gone.messages[0].kind, NodeMessage::Kind::kFinished);
  EXPECT_FALSE(gone.exit_code);
}

TEST(NodeAgent, AFailureIsToldAtOnceAndItsReportWhenNobodyIsLeft) {
  NodeAgent agent = running();

  const AgentActions failed = agent.on_worker_failed("rank 4 failed: exit code 3", 3);
  const AgentActions gone = agent.on_workers_gone(3, "box");

  EXPECT_EQ(failed.messages[0].kind, NodeMessage::Kind::kFailed);
  EXPECT_EQ(failed.messages[0].value, 3);
  EXPECT_EQ(gone.messages[0].kind, NodeMessage::Kind::kStopped);
  EXPECT_EQ(gone.messages[0].text, "box");
}

TEST(NodeAgent, AWorkerThatFailsWhileItIsStoppedIsNoFailure) {
  NodeAgent agent = running();
  agent.on_order(stopping(1), kNow);

  EXPECT_THAT(agent.on_worker_failed("rank 4 failed", 3).messages, IsEmpty());
}

TEST(NodeAgent, TheEndOfTheRunComesWhenTheWorkersAreGone) {
  NodeAgent agent = running();
  const Order closing{.kind = Order::Kind::kClose, .value = 3, .text = "rank 4 failed", .report = "box"};

  const AgentActions closed = agent.on_order(closing, kNow);
  const AgentActions gone = agent.on_workers_gone(143, "");

  EXPECT_TRUE(closed.stop_workers);
  EXPECT_FALSE(closed.exit_code);
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_EQ(gone.report, "box");
}

TEST(NodeAgent, ASignalThatEndsTheLauncherMakesItLeave) {
  NodeAgent agent = running();

  const AgentActions left = agent.on_end_signal(SIGTERM);

  EXPECT_EQ(left.messages[0].kind, NodeMessage::Kind::kLeave);
  EXPECT_EQ(left.messages[0].text, "its launcher was sent SIGTERM");
  EXPECT_EQ(agent.on_workers_gone(143, "").exit_code, 143);
  EXPECT_EQ(connected().on_end_signal(SIGINT).exit_code, 130);
}

TEST(NodeAgent, SendsHeartbeatsAndLosesAHostThatSendsNone) {
  NodeAgent agent = running();
  EXPECT_EQ(agent.deadline(), later(kNow, Seconds(1)));

  EXPECT_EQ(agent.on_time(later(kNow, Seconds(1))).messages[0].kind, NodeMessage::Kind::kHeartbeat);
  EXPECT_THAT(agent.on_time(later(kNow, Seconds(1.5))).messages, IsEmpty());
  const AgentActions lost = agent.on_time(later(kNow, Seconds(5)));

  EXPECT_THAT(lost.lines, ElementsAre("lost the host of the rendezvous: nothing heard for 5 s"));
  EXPECT_TRUE(lost.stop_workers);
  EXPECT_TRUE(lost.find_host);
  EXPECT_TRUE(agent.on_host_found(kNow).messages[0].busy);
}

TEST(NodeAgent, EndsWhenNoHostIsFoundWithinTheJoinTimeout) {
  NodeAgent agent({.id = "a"}, {.join_timeout = Seconds(9)}, kNow);

  EXPECT_FALSE(agent.on_time(later(kNow, Seconds(8))).exit_code);
  const AgentActions ended = agent.on_time(later(kNow, Seconds(9)));

  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.lines, ElementsAre("no host of the rendezvous was found within 9 s (join_timeout)"));
}

}  // namespace
}  // namespace hasten::launcher
