// The host's side of an elastic run. It decides on the nodes that take part, the start of a round and its ranks. It
// also decides on the stop of workers, its reason, and the end of the run.
//
// Pure: messages and the time go in, orders come out, nothing waits. The other side is node_agent.h; the
// reasons for the rules are in docs/decisions/0011-one-host-decides.md. The names of the settings are those
// of torchrun's dynamic rendezvous.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hasten/launch/rendezvous/rendezvous_message.h"
#include "hasten/launch/workers/supervisor.h"

namespace hasten::launcher {

using Seconds = std::chrono::duration<double>;

/// Returns `start` plus `delay`.
inline TimePoint later(TimePoint start, Seconds delay) {
  return start + std::chrono::duration_cast<TimePoint::duration>(delay);
}

struct RendezvousSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  /// How often all workers are started again because one failed. A change of members does not count.
  int max_restarts = 0;
  /// The wait for min_nodes, and a node's search time for the host.
  Seconds join_timeout = std::chrono::seconds(600);
  /// How long further nodes are waited for, once there are min_nodes for the first round (or again).
  Seconds last_call_timeout = std::chrono::seconds(30);
  /// Between two heartbeats, in both directions.
  Seconds keep_alive_interval = std::chrono::seconds(1);
  /// Number of intervals without a heartbeat after which a node is lost.
  int keep_alive_max_attempt = 5;
  /// Before the first restart after a failure; doubles with each further one up to
  /// SupervisorOptions::kMaxRestartDelay.
  Seconds restart_delay = std::chrono::milliseconds(100);

  Seconds loss_timeout() const { return keep_alive_interval * keep_alive_max_attempt; }
};

/// Facts about the run for a host that takes over.
struct RunSoFar {
  int round = 0;
  int restarts = 0;
  std::set<std::string> expected = {};  ///< ids of nodes that should come
};

class Rendezvous {
 public:
  using Orders = std::vector<Order>;

  Rendezvous(RendezvousSettings settings, TimePoint now, RunSoFar so_far = {});

  /// Handles a message from the node `id`, which must have joined before, or joins with it.
  Orders on_message(const std::string& id, const NodeMessage& message, TimePoint now);

  /// Handles the end of the connection to a node. `how`: "its connection was closed".
  Orders on_lost(const std::string& id, const std::string& how, TimePoint now);

  /// Carries out due work: nodes without heartbeats, windows that close. To be called when `deadline` has come.
  Orders on_time(TimePoint now);

  std::optional<TimePoint> deadline() const;

  bool closed() const { return phase_ == Phase::kClosed; }
  bool knows(const std::string& id) const { return nodes_.contains(id); }
  size_t num_nodes() const { return nodes_.size(); }
  int round() const { return round_; }

  /// Returns the whole state but for the time: equal texts, equal futures (tests, logs).
  std::string summary() const;

 private:
  enum class Phase { kGathering, kPlacing, kRunning, kStopping, kClosed };

  struct Node {
    NodeInfo info;
    int64_t seat = 0;       // a node that came earlier has the lower rank
    bool busy = false;      // its workers have not all ended
    bool in_round = false;  // of the round that is placed, running or being stopped
    bool finished = false;  // its workers of this round all ended with 0
    TimePoint last_heard = {};
  };

  void on_join(const NodeMessage& message, TimePoint now);
  void start_round(const NodeMessage& master);
  void failed(const Node& node, const NodeMessage& message);
  void ended(Node& node, const NodeMessage& message, TimePoint now);
  void remove(const std::string& id, const std::string& what_happened, TimePoint now);
  void stop_round(const std::string& reason, const std::string& but_for = "");
  void round_stopped(TimePoint now);
  void gather(TimePoint now);
  void wait_for_least(size_t num_ready, TimePoint now);
  bool window_is_open(size_t num_ready, TimePoint now);
  void place(const std::vector<Node*>& members);
  void close(int exit_code, const std::string& reason, const std::string& report = "");
  std::vector<Node*> by_seat();
  bool all_of_round(bool Node::*flag, bool value) const;
  bool someone_finished() const;
  void order(const Node& node, Order order);
  void order_all(const Order& order);

  struct Failure {
    std::string node, text, report;
    int exit_code = 1;
  };

  RendezvousSettings settings_;
  Phase phase_ = Phase::kGathering;
  std::map<std::string, Node> nodes_;
  std::set<std::string> expected_;
  int64_t num_seats_ = 0;
  int round_ = 0;
  int restarts_ = 0;
  std::optional<Failure> failure_;       // why the round is being stopped, if a worker failed
  bool wants_window_ = true;             // the next round waits last_call_timeout for further nodes
  std::optional<TimePoint> join_ends_;   // fewer than min_nodes until then: the run is over
  std::optional<TimePoint> last_call_;   // the window closes
  std::optional<TimePoint> not_before_;  // the delay before a restart
  std::optional<TimePoint> expected_until_;
  Order closing_;  // how the run ended
  Orders orders_;
};

}  // namespace hasten::launcher
