// An elastic run (--nnodes MIN:MAX, --rdzv_backend c10d or etcd): this launcher's part, from the rendezvous
// to the exit code.
//
// rendezvous.h and node_agent.h make the decisions; this unit connects them with the workers and the network.
#pragma once

#include <string>

#include "hasten/launch/rendezvous/rendezvous_conf.h"
#include "hasten/launch/run/local_run.h"

namespace hasten::launcher {

struct ElasticOptions {
  /// min_nodes, max_nodes, and the values of --rdzv_conf; the restarts are those of LaunchOptions.
  RendezvousSettings settings = {};
  /// c10d, etcd or etcd-v2.
  std::string backend = "c10d";
  /// c10d: where the first launcher listens. etcd: the server. Without a port 29400, 2379.
  std::string endpoint = "127.0.0.1";
  /// The connection to the etcd server, from --rdzv_conf.
  EtcdAccess etcd = {};
  /// The address under which the others reach this machine. "": the address from which this one reaches the host.
  std::string local_addr = {};
};

/// Runs as run_local does, with the launchers that meet at the endpoint under the run's id. run.run_id must be the same
/// for all. Collective: of the launchers that take part. Blocks: until the run is over, or a signal requested this
/// launcher's end, and none of its workers is left. Throws: UsageError if there is no secret, or an address is not one.
/// HASTEN_ETCD_USER of the inherited variables is the user for etcd ("name:password"), which workers do not get.
int run_elastic(int num_workers, const LaunchOptions& options, const ElasticOptions& elastic,
                const EnvironmentPlan& environment, const WorkerBody& body);

}  // namespace hasten::launcher
