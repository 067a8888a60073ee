// A whole elastic run in one value: the host, the nodes' agents, messages on their way, fake workers and a
// fake clock. What may happen next is a list of steps, so that a test can walk through every order of events.
#pragma once

#include <gtest/gtest.h>

#include <unordered_set>

#include "hasten/core/text.h"
#include "launch/rendezvous_world_node.h"

namespace hasten::launcher {

class World {
 public:
  /// `num_first` nodes are there from the beginning, the others come at any time.
  World(RendezvousSettings settings, int num_first, int num_nodes, Faults faults)
      : settings_(settings), faults_(faults), nodes_(static_cast<size_t>(num_nodes)) {
    for (int i = 0; i < num_first; ++i) begin(static_cast<size_t>(i));
  }

  /// Every state that can be reached. Fails the test where a rule is broken.
  static size_t walk(const World& first) {
    std::unordered_set<size_t> seen;  // hashes: a state that is missed is rare, and none is made up
    std::vector<World> open = {first};
    while (!open.empty() && !testing::Test::HasFailure()) {
      const World world = std::move(open.back());
      open.pop_back();
      if (!seen.insert(std::hash<std::string>()(world.summary())).second) continue;
      const auto steps = world.possible();
      if (steps.empty()) world.check_end();
      for (const Step& step : steps) {
        open.push_back(world);
        open.back().take(step);
        if (testing::Test::HasFailure()) {
          ADD_FAILURE() << "in " << world.summary() << "\nafter " << open.back().history_;
          break;
        }
      }
    }
    return seen.size();
  }

 private:
  using Node = WorldNode;
  using Step = WorldStep;
  using What = WorldStep::What;
  static std::string id_of(size_t node) { return std::string(1, static_cast<char>('a' + node)); }
  static size_t node_of(const std::string& id) { return static_cast<size_t>(id[0] - 'a'); }

  std::vector<Step> possible() const {
    std::vector<Step> steps;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      const bool may = node.alive && node.exit_code < 0;
      if (!node.agent && !over_) steps.push_back({What::kBegin, i});
      if (node.alive && !node.orders.empty()) steps.push_back({What::kToNode, i});
      if (host_ && node.connected && host_of_[i] == host_node_ && !node.messages.empty())
        steps.push_back({What::kToHost, i});
      if (may && node.connected && host_of_[i] != host_node_) steps.push_back({What::kNoticeHostLost, i});
      if (host_ && !node.alive && node.agent && host_->knows(id_of(i))) steps.push_back({What::kNoticeNodeLost, i});
      if (node.alive && node.running && !node.told_to_stop) {
        steps.push_back({What::kFinish, i});
        if (faults_.failures > 0) steps.push_back({What::kFail, i});
      }
      if (node.alive && node.running && node.told_to_stop) steps.push_back({What::kGone, i});
      if (may && faults_.kills > 0) steps.push_back({What::kKill, i});
      if (may && faults_.signals > 0) steps.push_back({What::kSignal, i});
    }
    // Time passes slowly: all that is on its way arrives before a timer of the host's.
    if (steps.empty() || !someone_unaware()) {
      if (host_ && waits_for_a_timer(*host_)) steps.push_back({What::kTime});
    }
    return steps;
  }

  // Whether somebody has still to learn that the host was lost, which takes less than any timer.
  bool someone_unaware() const {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].alive && nodes_[i].exit_code < 0 && nodes_[i].connected && host_of_[i] != host_node_) return true;
      if (nodes_[i].alive && !nodes_[i].messages.empty()) return true;
    }
    return false;
  }

  void take(const Step& step) {
    history_ += {"BOMHLFEGKST"[static_cast<int>(step.what)], static_cast<char>('a' + step.node), ' '};
    Node& node = nodes_[step.node];
    switch (step.what) {
      case What::kBegin:
        return begin(step.node);
      case What::kToNode: {
        const Order order = node.orders.front();
        node.orders.erase(node.orders.begin());
        return act(step.node, node.agent->on_order(order, now_));
      }
      case What::kToHost: {
        const NodeMessage message = node.messages.front();
        node.messages.erase(node.messages.begin());
        return obey(host_->on_message(id_of(step.node), message, now_));
      }
      case What::kNoticeHostLost:
        node.connected = false;
        node.messages.clear();
        node.orders.clear();
        return act(step.node, node.agent->on_host_lost("closed", now_));
      case What::kNoticeNodeLost:
        return obey(host_->on_lost(id_of(step.node), "closed", now_));
      case What::kFail:
        --faults_.failures;
        node.told_to_stop = node.failed = true;
        return act(step.node, node.agent->on_worker_failed("rank failed", 7));
      case What::kFinish:
        node.running = false;
        return act(step.node, node.agent->on_workers_gone(0, ""));
      case What::kGone: {
        node.running = false;
        const bool failed = std::exchange(node.failed, false);
        return act(step.node, node.agent->on_workers_gone(failed ? 7 : 143, failed ? "box" : ""));
      }
      case What::kKill:
        --faults_.kills;
        return end(step.node);
      case What::kSignal:
        --faults_.signals;
        node.told_to_stop = true;
        return act(step.node, node.agent->on_end_signal(15));
      case What::kTime:
        return pass_time();
    }
  }

  void begin(size_t node) {
    nodes_[node].alive = true;
    nodes_[node].agent.emplace(NodeInfo{.id = id_of(node), .name = id_of(node)}, settings_, now_);
    find_host(node);
  }

  // The first that looks is the host, after that the first living one of the successors.
  void find_host(size_t node) {
    if (!host_) {
      size_t chosen = node;
      std::set<std::string> expected;
      for (const NodeInfo& info : nodes_[node].agent->successors()) {
        const Node& successor = nodes_[node_of(info.id)];
        if (!successor.alive || successor.exit_code >= 0) continue;
        if (expected.empty()) chosen = node_of(info.id);
        expected.insert(info.id);
      }
      if (chosen != node) return;  // it will see for itself
      host_.emplace(settings_, now_, RunSoFar{nodes_[node].agent->round(), nodes_[node].agent->restarts(), expected});
      host_node_ = static_cast<int>(++num_hosts_ * 10 + node);
      for (size_t other = 0; other < nodes_.size(); ++other) {
        const bool looks = nodes_[other].agent && nodes_[other].alive && !nodes_[other].connected &&
                           nodes_[other].exit_code < 0 && other != node;
        if (looks) connect(other);
      }
    }
    connect(node);
  }
  void connect(size_t node) {
    nodes_[node].connected = true;
    host_of_[node] = host_node_;
    act(node, nodes_[node].agent->on_host_found(now_));
  }

  void end(size_t node) {
    nodes_[node].alive = nodes_[node].running = nodes_[node].connected = false;
    nodes_[node].orders.clear();
    nodes_[node].messages.clear();
    if (host_ && host_node_ % 10 == static_cast<int>(node)) {
      killed_at_the_end_ = host_->closed();
      host_.reset();
      host_node_ = -1;
    }
    look_again();
  }

  // Someone may have been waiting for one to take over that has gone.
  void look_again() {
    for (size_t other = 0; other < nodes_.size() && !host_; ++other) {
      const Node& candidate = nodes_[other];
      if (candidate.alive && !candidate.connected && candidate.exit_code < 0) find_host(other);
    }
  }

  void act(size_t index, const AgentActions& actions) {
    Node& node = nodes_[index];
    for (const NodeMessage& message : actions.messages) {
      if (node.connected) node.messages.push_back(message);
    }
    if (actions.choose_master && node.connected) {
      node.messages.push_back(
          {.kind = NodeMessage::Kind::kMaster, .round = *actions.choose_master, .value = 1, .text = id_of(index)});
    }
    if (actions.stop_workers) node.told_to_stop = true;
    if (actions.start) start(index, *actions.start);
    if (actions.exit_code) {
      EXPECT_FALSE(node.running) << "a launcher ends before its workers";
      node.exit_code = *actions.exit_code;
      if (node.exit_code == 143) over_ = over_ || nobody_left();
      // A host that was told to end hands over; one whose run is over stays until all have heard of it.
      if (host_ && host_node_ % 10 == static_cast<int>(index) && !host_->closed()) step_down(index);
      look_again();
    }
    if (actions.find_host && node.exit_code < 0) find_host(index);
  }

  void step_down(size_t index) {
    host_.reset();
    host_node_ = -1;
    nodes_[index].connected = false;
  }
  bool nobody_left() const {
    return std::none_of(nodes_.begin(), nodes_.end(),
                        [](const Node& node) { return node.alive && node.exit_code < 0; });
  }

  void start(size_t index, const Assignment& assignment) {
    Node& node = nodes_[index];
    EXPECT_FALSE(node.running);
    for (size_t other = 0; other < nodes_.size(); ++other) {
      const bool older = nodes_[other].alive && nodes_[other].running && nodes_[other].round != assignment.round &&
                         nodes_[other].exit_code < 0;
      const bool leaving = nodes_[other].agent && nodes_[other].agent->summary().find("exit") != std::string::npos;
      EXPECT_FALSE(older && !leaving) << "node " << id_of(other) << " still runs round " << nodes_[other].round;
    }
    node.running = true;
    node.told_to_stop = node.failed = false;
    node.round = assignment.round;
    EXPECT_EQ(assignment.master_addr, assignment.successors.front().id);
  }

  void obey(const Rendezvous::Orders& orders) {
    std::vector<Assignment> started;
    for (const Order& order : orders) {
      if (order.kind == Order::Kind::kStart) started.push_back(order.assignment);
      if (order.kind == Order::Kind::kClose) over_ = true;
      if (order.kind == Order::Kind::kNotice || order.kind == Order::Kind::kHeartbeat) continue;
      Node& node = nodes_[node_of(order.to)];
      if (node.alive && node.connected && host_of_[node_of(order.to)] == host_node_) node.orders.push_back(order);
    }
    if (!started.empty()) check_round(started, settings_);
  }

  void pass_time() {
    now_ += std::chrono::hours(1);
    // Who is alive has been heard in the meantime, who is not was noticed by its connection.
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (host_->knows(id_of(i))) obey(host_->on_message(id_of(i), {}, now_));
    }
    obey(host_->on_time(now_));
  }

  // Nothing can happen any more: everyone has ended, with one exit code but for those told to end.
  void check_end() const {
    std::set<int> codes;
    for (const Node& node : nodes_) {
      if (!node.alive) continue;
      EXPECT_GE(node.exit_code, 0) << "waits for ever: " << summary() << "\nafter " << history_;
      EXPECT_FALSE(node.running) << "workers are left: " << summary() << "\nafter " << history_;
      if (node.exit_code != 143) codes.insert(node.exit_code);
    }
    // A host that is killed while it says how the run ended takes that along: some have heard it, some not.
    EXPECT_LE(codes.size(), killed_at_the_end_ ? 2u : 1u) << summary() << "\nafter " << history_;
    for (const int code : codes) EXPECT_TRUE(code == 0 || code == 1 || code == 7);
  }

  std::string summary() const {
    std::string result = text(host_ ? host_->summary() : "no host", " at ", host_node_ % 10, " faults ", faults_.kills,
                              faults_.failures, faults_.signals, over_, killed_at_the_end_);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      result += text("\n", summary_of(nodes_[i]), host_of_[i] == host_node_);
    }
    return result;
  }

  RendezvousSettings settings_;
  Faults faults_;
  TimePoint now_ = {};
  std::optional<Rendezvous> host_;
  int host_node_ = -1;  // 10 * how many hosts there were + the node's index
  int num_hosts_ = 0;
  int host_of_[4] = {-1, -1, -1, -1};
  bool over_ = false;
  bool killed_at_the_end_ = false;
  std::vector<Node> nodes_;
  std::string history_;  // of steps: the letter of What (see take) and the node
};

}  // namespace hasten::launcher
