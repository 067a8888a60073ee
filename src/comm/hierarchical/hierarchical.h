// Two levels: shared memory between the ranks of one host, Gloo between one rank of each host.
//
// A collective goes up (reduced or gathered on the host's first rank, its leader), across (between the leaders) and
// down again. So each byte crosses the network once a host and not once a rank. Messages to ranks of the same host go
// through its memory. Operations that gain nothing from levels (all_to_all, messages between hosts) use Gloo among all
// ranks.
//
// If ranks of one host make different calls, its shared memory finds them, and names them as the group numbers them.
// Between hosts small collectives carry their call. For large ones, and for the same words on all ranks, the group
// compares calls before each collective if GroupOptions::check is set.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/backend/backend.h"

namespace hasten::comm {

/// Which ranks are together, by host in the order of their first ranks.
using Hosts = std::vector<std::vector<int>>;
/// Hosts from their names by rank; a rank whose host is unknown ("") is alone.
Hosts group_by_host(const std::vector<std::string>& names);

/// The way of a reduce_scatter: each rank of a host is the collector of some ranks of all hosts. It reduces their parts
/// for this host, and sends them there.
struct ScatterPlan {
  /// The parts by collector, as many rows for each; -1 is a row of padding.
  std::vector<int> order = {};
  /// The parts that this rank collects, in the order of its rows.
  std::vector<int> collected = {};
  /// The ranks that send this one its part, one a host, in the order of their numbers.
  std::vector<int> senders = {};
};
/// Returns the plan of the rank with number `local` on `host`.
ScatterPlan plan_scatter(const Hosts& hosts, int host, int local);

/// Collective: yes. Blocks: until the ranks are connected. Throws: the exceptions of the backends; std::runtime_error,
/// on all ranks, if a host cannot share memory.
std::unique_ptr<Backend> make_hierarchical(const BackendSetup& setup, const Hosts& hosts);

}  // namespace hasten::comm
