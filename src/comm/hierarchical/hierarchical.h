// Two levels: shared memory between the ranks of one host, Gloo between one rank of each host.
//
// A collective goes up (reduced or gathered on the host's first rank, its leader), across (between the
// leaders) and down again, so that each byte crosses the network once a host and not once a rank. Messages to
// ranks of the same host go through its memory. What gains nothing from levels (all_to_all, messages between
// hosts) uses Gloo among all ranks.
//
// Ranks of one host that make different calls are found by its shared memory, and named as the group numbers them. Between
// hosts small collectives carry what is called; for large ones, and for the same words on all ranks, the group compares
// calls before each collective where GroupOptions::check is set.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hasten/comm/backend/backend.h"

namespace hasten::comm {

/// Which ranks are together, by host in the order of their first ranks.
using Hosts = std::vector<std::vector<int>>;
/// Hosts from their names by rank; a rank whose host is unknown ("") is alone.
Hosts group_by_host(const std::vector<std::string>& names);

/// How a reduce_scatter goes: each rank of a host reduces, for this host, the parts of some ranks of all hosts (it is their
/// collector), and sends them there.
struct ScatterPlan {
  /// The parts by collector, as many rows for each; -1 is a row of padding.
  std::vector<int> order = {};
  /// The parts that this rank collects, in the order of its rows.
  std::vector<int> collected = {};
  /// The ranks that send this one its part, one a host, in the order of their numbers.
  std::vector<int> senders = {};
};
/// The plan of the rank with number `local` on `host`.
ScatterPlan plan_scatter(const Hosts& hosts, int host, int local);

/// Collective: yes. Blocks: until the ranks are connected. Throws: what the backends throw;
/// std::runtime_error, on all ranks, where a host cannot share memory.
std::unique_ptr<Backend> make_hierarchical(const BackendSetup& setup, const Hosts& hosts);

}  // namespace hasten::comm
