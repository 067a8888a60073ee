// GroupOptions: how a group is connected, and SubgroupOptions: how one is made of another.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace hasten::comm {

enum class BackendKind { kAuto, kGloo, kSharedMemory, kNccl };

struct GroupOptions {
  /// How long an operation may take before it throws; the same on all ranks.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Agree on operation, dtype and shape before each collective (one more small all-gather each; see
  /// docs/benchmarks.md for its cost). Unset: on under HASTEN_DEBUG=1, off otherwise.
  std::optional<bool> check = {};
  /// kAuto: what HASTEN_BACKEND says (auto, gloo, shm, nccl), else NCCL for CUDA tensors where libtorch has
  /// it, and for CPU tensors shared memory between ranks on one host and Gloo between hosts. kGloo: nothing
  /// else.
  BackendKind backend = BackendKind::kAuto;
  /// Shared memory of each rank; what the collectives do not need is for Group::buffer. Taken from the system
  /// only as it is used. The same on all ranks. Unset: HASTEN_SHM_MB, else 32 MB.
  std::optional<int64_t> shared_bytes = {};
  /// The host this rank is on: only ranks of equal names share memory. Empty: found out (boot id and network
  /// namespace, so containers with a network of their own count as hosts).
  std::string host = {};
  /// The address or host name this rank listens on for its peers. Empty: network_interface's, else the
  /// address the host's name resolves to. Runs on one machine use 127.0.0.1.
  std::string address = {};
  /// Appears in messages and keeps the keys of groups on one store apart; the same on all ranks.
  std::string name = "world";
  /// The ranks connect at their first collective (or connect_backends) and not at once; a group that is not used takes
  /// no memory and no connection.
  bool lazy = false;
  /// The interface whose address is listened on, for example "eth0", if `address` is empty. Empty: GLOO_SOCKET_IFNAME.
  std::string network_interface = {};
  /// Gloo's writes to a peer that has died raise SIGPIPE, which ends a process that does not ignore it. false: the program
  /// sees to that itself.
  bool ignore_sigpipe = true;
};

/// How subgroup and split make a group; the rest is as in the group that is split.
struct SubgroupOptions {
  /// As GroupOptions::lazy.
  bool lazy = false;
};

}  // namespace hasten::comm
