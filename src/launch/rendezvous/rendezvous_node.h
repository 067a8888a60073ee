// A launcher in an elastic run, on the network. It has its agent, the connection to the host, the search for one, and
// the server for the case that it becomes the host.
//
// Nothing here waits: `add_sources` and `deadline` give the time at which `pump` has work. The workers are
// elastic_rounds.h's.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "launch/rendezvous/host_finder.h"
#include "launch/rendezvous/host_server.h"
#include "launch/rendezvous/node_agent.h"

namespace hasten::launcher {

struct RendezvousNodeOptions {
  RendezvousSettings settings = {};
  Bytes run_key = {};
  std::string name = {};  ///< for the user: the host's name
  int num_workers = 1;
  /// Under which the others reach this machine; "": the address from which the host is reached.
  std::string local_addr = {};
  /// The endpoint at which newcomers look for the host. A host that has taken over looks there for a host without its
  /// address. Empty if newcomers find it otherwise (etcd).
  std::optional<Endpoint> endpoint = {};
  std::function<void(const std::string& line)> notice = [](const std::string&) {};
};

class RendezvousNode {
 public:
  RendezvousNode(RendezvousNodeOptions options, std::unique_ptr<HostFinder> finder, TimePoint now);

  void add_sources(std::vector<pollfd>& sources) const;
  std::optional<TimePoint> deadline() const;
  void pump(TimePoint now);

  void worker_failed(const std::string& what, int exit_code, TimePoint now);
  void workers_gone(int exit_code, const std::string& report, TimePoint now);
  void end_signal(int signal, TimePoint now);

  /// Decisions since the last call, each once.
  std::optional<Assignment> take_start() { return std::exchange(start_, std::nullopt); }
  bool take_stop() { return std::exchange(stop_, false); }
  /// Returns the exit code, once all notices were sent.
  std::optional<int> exit_code(TimePoint now) const;
  const std::string& report() const { return report_; }
  /// Returns true if no node is left that could go on with the run.
  bool is_last() const { return is_last_ || server_.hosting(); }

 private:
  void carry_out(const AgentActions& actions, TimePoint now);
  void take(Found found, TimePoint now);
  void become_host(Found found, TimePoint now);
  void join_at(Found found, TimePoint now);
  void read_host(TimePoint now);
  void lose_host(std::string how, TimePoint now, std::optional<Endpoint> hint = {});
  void send(const NodeMessage& message, TimePoint now);
  void choose_master(int round, TimePoint now);
  void look_for_others(const std::vector<int>& ready, TimePoint now);
  Endpoint listen_here(const std::string& address);

  RendezvousNodeOptions options_;
  std::unique_ptr<HostFinder> finder_;
  std::string id_;
  NodeInfo self_;
  std::unique_ptr<NodeAgent> agent_;
  HostServer server_;
  std::unique_ptr<Channel> host_;  // the connection to the host, if that is another
  int generation_ = 0;             // of the host
  bool listening_ = false;
  bool at_endpoint_ = false;        // newcomers find this launcher
  std::unique_ptr<Channel> probe_;  // to the endpoint, while this is the host and not there
  TimePoint next_probe_ = {};
  std::optional<Endpoint> hint_;
  Endpoint last_host_;
  std::optional<Assignment> start_;
  bool stop_ = false;
  std::optional<int> exit_code_;
  TimePoint leave_by_ = {};
  std::string report_;
  bool is_last_ = false;
};

}  // namespace hasten::launcher
