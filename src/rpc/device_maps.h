// Device maps: where a tensor on a GPU goes at another worker, as pure functions over the facts of all workers at the
// start.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/rpc/options.h"

namespace hasten::rpc {

/// A worker's facts about its GPUs.
struct WorkerDevices {
  std::string name = {};
  /// A further name by which maps may name the worker; empty: none.
  std::string second_name = {};
  int num_cuda = 0;
  DeviceMaps maps = {};
  /// The only devices that may take part; empty: all.
  std::vector<c10::Device> devices = {};
};

/// Returns all faults of all workers' maps, "" if there are none.
std::string device_problems(const std::vector<WorkerDevices>& all);

/// Returns the device at `to` for a tensor on `device` of `from`; nothing without a map. A map serves both ways:
/// replies take its inverse. If both workers map the device, the caller's map counts: `from`'s, or in a reply `to`'s.
std::optional<c10::Device> mapped_device(const WorkerDevices& from, const WorkerDevices& to, c10::Device device,
                                         bool is_reply);

/// Lines for other workers, each ended by a newline. take_device_line() reads one, and returns false for others.
std::string device_lines(const WorkerDevices& own);
bool take_device_line(std::string_view line, WorkerDevices& into);

}  // namespace hasten::rpc
