// Settings of an agent, and what it reports of itself and of the other workers.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hasten::rpc {

struct DeviceLess {
  bool operator()(const c10::Device& a, const c10::Device& b) const {
    return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
  }
};
/// For each worker, the devices here and there between which its tensors move, one to one. Replies take the inverse.
using DeviceMaps = std::map<std::string, std::map<c10::Device, c10::Device, DeviceLess>>;

struct RpcOptions {
  /// Unique; at most 127 characters of A-Z a-z 0-9 _ : -. Empty: "worker" and rank. Where the launcher
  /// has given roles, role and number (ps0), and other workers find it by "worker" and rank as well.
  std::string name = {};
  /// Seconds until a call fails; 0: none.
  double timeout_s = 60;
  /// Threads that run handlers at a time. A handler that waits is replaced meanwhile.
  int num_threads = 16;
  /// Waiting handlers beyond this number are refused.
  int max_threads = 256;
  /// Silence after which a worker on another host is lost.
  double lost_after_s = 10;
  /// Serves agent.call_operator() of other workers.
  bool serve_operators = false;
  /// Lists RRefs that still exist at shutdown().
  bool report_leaks = false;
  int64_t max_message_bytes = int64_t{4} << 30;
  /// Workers join and leave one by one instead of all together: constructor and shutdown() are not collective. A
  /// worker's id is the number of its coming, and no rank of the process.
  bool dynamic = false;
  /// Tensors on CUDA devices may be arguments and results between devices that a map names. They travel through pinned
  /// memory.
  DeviceMaps device_maps = {};
  /// The only CUDA devices in maps of this worker and of others to it; empty: all.
  std::vector<c10::Device> devices = {};
};

enum class WorkerEvent { kJoined, kLeft, kLost };

/// Numbers about one function at this worker, in microseconds.
struct FunctionStats {
  int64_t num_calls = 0;
  double queue_p50_us = 0, queue_p99_us = 0, run_p50_us = 0, run_p99_us = 0;
};
/// Counts about another worker: calls sent to it and served for it, and bytes to and from it.
struct WorkerStats {
  std::string name;
  int64_t num_calls_sent = 0, num_calls_served = 0, bytes_sent = 0, bytes_received = 0;
};
struct AgentStats {
  int64_t num_calls_sent = 0, num_calls_served = 0, num_pending = 0, num_waiting = 0, num_running = 0;
  int64_t num_threads = 0, num_objects = 0, num_references = 0, bytes_sent = 0, bytes_received = 0;
  /// Autograd contexts that have data at this worker.
  int64_t num_contexts = 0;
  std::map<std::string, FunctionStats> functions = {};
  /// By the worker's id.
  std::map<int, WorkerStats> workers = {};
};

}  // namespace hasten::rpc
