// GroupOptions: how a group is connected, and SubgroupOptions: how one is made of another.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace hasten::comm {

enum class BackendKind { kAuto, kGloo, kSharedMemory, kNccl, kMpi };

struct GroupOptions {
  /// How long an operation may take before it throws; the same on all ranks.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Agrees on operation, dtype and shape before each collective. That costs one more small all-gather each
  /// (docs/benchmarks.md). Unset: on under HASTEN_DEBUG=1, off otherwise.
  std::optional<bool> check = {};
  /// kAuto: the backend of HASTEN_BACKEND (auto, gloo, shm, nccl, mpi), if set. Else CUDA tensors use NCCL if libtorch
  /// has it. CPU tensors use shared memory between ranks on one host and Gloo between hosts. kGloo: nothing else. kMpi:
  /// CPU tensors use the MPI that started the program, in a build with it.
  BackendKind backend = BackendKind::kAuto;
  /// Shared memory of each rank. Group::buffer takes the part that collectives do not need. Taken from the system only
  /// as it is used. The same on all ranks. Unset: HASTEN_SHM_MB, else 32 MB.
  std::optional<int64_t> shared_bytes = {};
  /// The host this rank is on: only ranks of equal names share memory. Empty: found out (boot id and network
  /// namespace, so containers with a network of their own count as hosts).
  std::string host = {};
  /// The address or host name this rank listens on for its peers. Empty: network_interface's, else the
  /// address the host's name resolves to. Runs on one machine use 127.0.0.1.
  std::string address = {};
  /// Appears in messages, and separates the keys of groups on one store. It is the same on all ranks.
  std::string name = "world";
  /// If true, the ranks connect at their first collective (or connect_backends). An unused group takes no memory and no
  /// connection.
  bool lazy = false;
  /// The interface whose address is listened on, for example "eth0", if `address` is empty. Empty: GLOO_SOCKET_IFNAME.
  std::string network_interface = {};
  /// If true, SIGPIPE is ignored: Gloo's writes to a dead peer raise it, which would end the process. If false, the
  /// program handles it.
  bool ignore_sigpipe = true;
};

/// Options of subgroup and split. All else is as in the group that is split.
struct SubgroupOptions {
  /// As GroupOptions::lazy.
  bool lazy = false;
};

}  // namespace hasten::comm
