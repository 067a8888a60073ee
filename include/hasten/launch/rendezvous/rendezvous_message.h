// Messages between the nodes and the host of an elastic run.
//
// Plain values, so that the decisions on both sides (rendezvous.h, node_agent.h) are tested without a
// network. How they travel is src/launch/rendezvous/rendezvous_wire.h.
#pragma once

#include <string>
#include <vector>

namespace hasten::launcher {

/// A launcher of an elastic run.
struct NodeInfo {
  std::string id = {};       ///< unique among all launchers of the run
  std::string name = {};     ///< text for the user: the host's name, and the process id
  std::string address = {};  ///< under which the other nodes reach it
  int port = 0;              ///< where it listens, should it become the host
  int num_workers = 1;
};

/// From a node to the host.
struct NodeMessage {
  enum class Kind {
    kJoin,       ///< `node`, and its last `round` and `restarts`; `busy`: workers are still being stopped
    kHeartbeat,  ///< still here
    kMaster,     ///< rank 0 of the workers opens its store at `text`:`value`
    kFailed,     ///< a worker failed first (`text`), with the exit code `value`; the others are being stopped
    kStopped,    ///< no worker is left; `text`: the report, if one of them failed
    kFinished,   ///< all workers ended with 0
    kLeave,      ///< this node ends, because of `text`
  };
  Kind kind = Kind::kHeartbeat;
  int round = 0;  ///< the round in question; for kJoin the last one known
  int value = 0;
  std::string text = {};
  NodeInfo node = {};
  bool busy = false;
  int restarts = 0;
};

/// One node's part in a round: a start of the workers on all nodes together.
struct Assignment {
  int round = 0;          ///< from 1
  int restart_count = 0;  ///< how many rounds a failed worker has ended
  int node_rank = 0;
  int num_nodes = 1;
  int first_rank = 0;  ///< of this node's workers
  int world_size = 1;
  std::string master_addr = {};
  int master_port = 0;
  /// The nodes that take over, in this order, should the host be lost. At most kMaxSuccessors.
  std::vector<NodeInfo> successors = {};

  static constexpr size_t kMaxSuccessors = 16;
};

/// From the host to the node `to`.
struct Order {
  enum class Kind {
    kHeartbeat,     ///< still here
    kNotice,        ///< show `text` to the user
    kChooseMaster,  ///< choose the address of rank 0's store in round `round`, and send it (kMaster)
    kStart,         ///< start the workers of `assignment`
    kStop,          ///< stop the workers of `round` in order, because of `text`
    kClose,         ///< the run is over with exit code `value`, because of `text`; `report`: the first failure's
    kDrop,          ///< for the host itself: the node is silent; end its connection
  };
  std::string to = {};
  Kind kind = Kind::kHeartbeat;
  int round = 0;
  int value = 0;
  std::string text = {};
  std::string report = {};
  Assignment assignment = {};
};

}  // namespace hasten::launcher
