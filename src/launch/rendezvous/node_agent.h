// The side of a node in an elastic run: a launcher's reactions to the host's orders, its own workers and the signals it
// is sent.
//
// Pure, like the host's side (rendezvous.h): events and the time go in, actions come out. Carrying them out
// is src/launch/run/elastic_rounds.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/launch/rendezvous/rendezvous.h"

namespace hasten::launcher {

/// Actions for the launcher, in the order of the members.
struct AgentActions {
  std::vector<std::string> lines = {};     ///< for the user
  std::vector<NodeMessage> messages = {};  ///< to the host
  std::optional<int> choose_master = {};   ///< answer with kMaster for this round
  bool stop_workers = false;               ///< in order, with the shutdown timeout
  std::optional<Assignment> start = {};    ///< start the workers
  bool find_host = false;                  ///< the host is lost: find another, or become one
  std::optional<int> exit_code = {};       ///< this launcher is to end
  std::string report = {};                 ///< of the failure that ended the run, to be shown before that
};

class NodeAgent {
 public:
  NodeAgent(NodeInfo self, RendezvousSettings settings, TimePoint now);

  /// There is a host that can be written to.
  AgentActions on_host_found(TimePoint now);
  AgentActions on_host_lost(const std::string& how, TimePoint now);
  AgentActions on_order(const Order& order, TimePoint now);

  /// Handles the first failure of a worker; the launcher is stopping the others. `what`: "rank 3 failed: exit code 1".
  AgentActions on_worker_failed(const std::string& what, int exit_code);
  /// No worker is left. `report` is for the user, if one of them failed.
  AgentActions on_workers_gone(int exit_code, const std::string& report);
  /// Handles a signal that ends the launcher (ends_run); its workers are being stopped.
  AgentActions on_end_signal(int signal);

  /// Heartbeats that are due, a host without a heartbeat, a host that was not found.
  AgentActions on_time(TimePoint now);
  std::optional<TimePoint> deadline() const;

  /// How the others reach this node, known once it has met the host.
  void move_to(NodeInfo self) { self_ = std::move(self); }
  int round() const { return round_; }
  int restarts() const { return restarts_; }
  const std::vector<NodeInfo>& successors() const { return successors_; }
  bool has_workers() const { return workers_ != Workers::kNone; }

  /// As Rendezvous::summary.
  std::string summary() const;

 private:
  enum class Workers { kNone, kRunning, kStopping };

  NodeMessage message(NodeMessage::Kind kind) const { return {.kind = kind, .round = round_}; }
  AgentActions close(const Order& order);

  NodeInfo self_;
  RendezvousSettings settings_;
  Workers workers_ = Workers::kNone;
  int round_ = 0;
  int restarts_ = 0;
  std::vector<NodeInfo> successors_;
  bool has_host_ = false;
  std::optional<int> exit_code_;  // the end is decided; it comes when the workers are gone
  std::string report_;            // for that end
  TimePoint host_heard_ = {};
  TimePoint next_heartbeat_ = {};
  TimePoint seek_ends_ = {};
};

}  // namespace hasten::launcher
