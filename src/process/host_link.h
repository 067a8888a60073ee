// The run's store as the way between the lookers of its hosts (flight/hosts.h).
#pragma once

#include <functional>
#include <memory>

#include "hasten/comm/store/store.h"
#include "hasten/flight/hosts.h"
#include "hasten/process/rank_info.h"

namespace hasten::process {

/// Returns a link over a connection of its own, which is opened at its first use. A call throws CommError if the store
/// does not answer within two seconds. The rank that serves it may be stopped, which is to be reported.
std::unique_ptr<flight::HostLink> make_host_link(const RankInfo& identity, int number);

/// The same over a given store, at that port of its server; 0: it has none. For tests.
std::unique_ptr<flight::HostLink> make_host_link(std::function<comm::Store()> open, int port);

}  // namespace hasten::process
