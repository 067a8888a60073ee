// The parts of rendezvous_world.h: one node, one step, and what must hold of a round.
#pragma once

#include <gtest/gtest.h>

#include "hasten/core/text.h"
#include "launch/rendezvous/node_agent.h"

namespace hasten::launcher {

/// How often each of these may happen in a run, at any time.
struct Faults {
  int kills = 0;     // of a node with all that belongs to it, the host's too
  int failures = 0;  // of a worker
  int signals = 0;   // to a launcher
};

/// Something that happens next.
struct WorldStep {
  enum class What {
    kBegin,
    kToNode,
    kToHost,
    kNoticeHostLost,
    kNoticeNodeLost,
    kFail,
    kFinish,
    kGone,
    kKill,
    kSignal,
    kTime
  };
  What what;
  size_t node = 0;
};

/// One launcher: its agent, its workers, and what is on its way to and from it.
struct WorldNode {
  std::optional<NodeAgent> agent = {};
  bool alive = false;
  bool connected = false;  // to the present host, as the node sees it
  bool running = false;    // its workers
  bool told_to_stop = false;
  bool failed = false;
  int exit_code = -1;
  int round = 0;  // of the workers
  std::vector<Order> orders = {};
  std::vector<NodeMessage> messages = {};
};

inline std::string summary_of(const WorldNode& node) {
  std::string result = text(node.agent ? node.agent->summary() : "-", node.alive, node.connected, node.running,
                            node.told_to_stop, node.failed);
  for (const Order& order : node.orders) result += text(" <", static_cast<int>(order.kind), ".", order.round);
  for (const NodeMessage& message : node.messages)
    result += text(" >", static_cast<int>(message.kind), ".", message.round, message.busy);
  return result;
}

/// The assignments of one round must fit together.
inline void check_round(const std::vector<Assignment>& started, const RendezvousSettings& settings) {
  EXPECT_GE(static_cast<int>(started.size()), settings.min_nodes);
  EXPECT_LE(static_cast<int>(started.size()), settings.max_nodes);
  int next = 0;
  for (size_t i = 0; i < started.size(); ++i) {
    EXPECT_EQ(started[i].node_rank, static_cast<int>(i));
    EXPECT_EQ(started[i].first_rank, next++);
    EXPECT_EQ(started[i].world_size, static_cast<int>(started.size()));
    EXPECT_EQ(started[i].num_nodes, static_cast<int>(started.size()));
    EXPECT_LE(started[i].restart_count, settings.max_restarts);
  }
}

/// Whether the host waits for a time to come. Heartbeats are no events: who is alive is heard.
inline bool waits_for_a_timer(const Rendezvous& host) {
  const std::string summary = host.summary();
  const auto has = [&](const char* word) { return summary.find(word) != std::string::npos; };
  return has("phase 0") && host.num_nodes() > 0 && (has(" join") || has(" last") || has(" delay") || has(" expected"));
}

}  // namespace hasten::launcher
