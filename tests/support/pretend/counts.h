// What the pretend device has done, for tests that say how often a step waits or how many kernels it starts.
//
// The library is found at run time, so that one program serves the pretend device and a GPU: there counts() is null.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdint>

namespace hasten::testing::pretend {

inline constexpr int kMaxDevices = 8;

/// Plain numbers, which the device changes atomically. A test may set those of the last group.
struct Counts {
  int64_t kernels = 0, copies = 0;
  /// Bytes of the copies from the host to a device.
  int64_t to_device_bytes = 0;
  /// Copies between a device and pinned memory that were left for later.
  int64_t late_copies = 0;
  /// How often the host waited: item(), copies to memory that is not pinned, synchronisation.
  int64_t waits = 0;
  /// Blocks whose memory a stream still used when they were freed.
  int64_t deferred_frees = 0;
  /// Streams handed out, by device.
  std::array<int64_t, kMaxDevices> streams = {};
  /// Memory of each device, in bytes: now and at most.
  std::array<int64_t, kMaxDevices> bytes = {}, peak_bytes = {};

  /// Bytes that each device has; what does not fit is out of memory. 0: as much as the host gives.
  int64_t limit_bytes = 0;
  /// Milliseconds that a host waits for work that is not done, so that its other threads go on meanwhile.
  int64_t slow_ms = 20;
};

extern "C" using CountsFunction = Counts * ();

/// Returns the counts of the pretend device; null where the process has another device or none.
inline Counts* counts() {
  static auto* const function = reinterpret_cast<CountsFunction*>(dlsym(RTLD_DEFAULT, "hasten_pretend_counts"));
  return function == nullptr ? nullptr : function();
}

}  // namespace hasten::testing::pretend
