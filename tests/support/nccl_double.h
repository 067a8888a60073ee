// A double of NCCL on the pretend device: passes bytes through the CPU's backend, and finishes as late as NCCL may.
//
// Results reach their tensors when a stream that waits for the operation gets there, and not before. An input that is
// written to while its operation is under way fails the test. As with NCCL, a message blocks the stream until the other
// side has come to it, messages have no tags, and two ranks on one GPU are refused.
//
// A kernel of the pretend device waits on the host for what its stream has before it, for other ranks too. Autocast's
// cache casts parameters while it holds a mutex of the process. So ranks that are threads switch the cache off
// (AutocastOptions::cache_enabled), or are processes.
#pragma once

#include <chrono>
#include <cstdint>

namespace hasten::testing {

/// While it lives, groups of this process use the double for CUDA tensors. Groups that have one keep it.
class UsesNcclDouble {
 public:
  UsesNcclDouble();
  ~UsesNcclDouble();
  UsesNcclDouble(const UsesNcclDouble&) = delete;
  UsesNcclDouble& operator=(const UsesNcclDouble&) = delete;

  /// Bytes that a rank of a ring sends for the collectives since the double is used, over all groups: of W ranks,
  /// all-gather and reduce-scatter (W - 1) / W of the whole, all-reduce twice that, broadcast and reduce the whole.
  static int64_t wire_bytes(int rank);
  /// Collectives whose thread had another current device than their tensors, since the double is used.
  static int64_t calls_on_other_devices();
  /// The time that the device says it took for each call that it does from now on. Before that it is the true one.
  static void set_call_time(std::chrono::nanoseconds time);
};

}  // namespace hasten::testing
