// Device maps: which module goes on which device, computed from sizes and limits.
//
// The algorithm is Accelerate's greedy one, so that maps are equal to its own: accelerators first, then "cpu", then
// "disk". A main device reserves room for the largest layer that is still to come. Tied tensors go together.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/plan/memory_limits.h"

namespace hasten::plan {

/// Name of a module or tensor -> device, in the order of assignment. "" means everything else.
class DeviceMap {
 public:
  using Entry = std::pair<std::string, Device>;
  DeviceMap() = default;
  DeviceMap(std::initializer_list<Entry> entries) : entries_(entries) {}
  explicit DeviceMap(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// In the order of assignment: `for (const auto& [name, device] : map)`.
  std::vector<Entry>::const_iterator begin() const noexcept { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const noexcept { return entries_.end(); }
  size_t size() const noexcept { return entries_.size(); }
  bool empty() const noexcept { return entries_.empty(); }
  const Device* find(std::string_view name) const;
  void set(const std::string& name, Device device);
  void erase(std::string_view name);
  /// Returns the device of the longest entry that is `name` or a parent of it; null if there is none.
  const Device* device_of(std::string_view name) const;
  /// {"wte": 0, "head": "disk"} as JSON, in order.
  std::string to_json() const;
  static DeviceMap from_json(const core::Value& value);
  bool operator==(const DeviceMap&) const = default;

 private:
  std::vector<Entry> entries_;
};

/// Prints to_json.
std::ostream& operator<<(std::ostream& out, const DeviceMap& map);

struct InferOptions {
  std::vector<std::string> no_split_module_classes = {};
  SizeOptions sizes = {};
  bool clean_result = true;          ///< merges entries of one prefix that share a device
  bool offload_buffers = false;      ///< buffers of modules that are not on an accelerator are moved when used
  bool fallback_allocation = false;  ///< puts a smaller module first where nothing fits an empty device
  /// Is given one line for each step.
  std::function<void(std::string_view)> verbose = {};
};

struct InferredMap {
  DeviceMap device_map = {};
  /// Buffers on cpu and disk fit no accelerator's rest, though offload_buffers is false.
  bool warns_buffers = false;
  /// Devices on which nothing fitted, with the bytes that the first item would have needed.
  std::vector<std::pair<Device, double>> minimum_memory = {};
};

/// Returns a device for every parameter and buffer. "disk" takes what no limit has room for.
/// Throws: UsageError for an unknown dtype.
InferredMap infer_auto_device_map(const ModuleTree& tree, const MemoryLimits& limits, const InferOptions& options = {});

/// Merges two or more entries below one prefix that all have one device, from the root down.
DeviceMap clean_device_map(DeviceMap map);

struct DeviceMapCheck {
  std::vector<std::string> unknown_modules = {};  ///< keys that are no module of the model
  std::vector<std::string> uncovered_tensors = {};
};

/// Returns the keys that name no module, and the tensors that no key covers.
DeviceMapCheck examine_device_map(const ModuleTree& tree, const DeviceMap& map);

/// Throws if a tensor has no device; returns a warning for keys that name neither a module nor a tensor, "" without
/// any. Throws: UsageError listing all tensors without a device.
std::string check_device_map(const ModuleTree& tree, const DeviceMap& map);

/// A tensor whose names a device map puts on several devices: it needs memory on each of them.
struct TieAcrossDevices {
  std::vector<std::string> names = {};
  std::vector<Device> devices = {};  ///< in the order of names, each once
  /// Bytes beyond the first copy. "cpu" and "disk" are one memory, so a tie between them needs none.
  double extra_bytes = 0;
};

/// Returns the ties that Accelerate's check_tied_parameters_on_same_device warns of. They are legal here.
/// Throws: UsageError for an unknown dtype.
std::vector<TieAcrossDevices> ties_across_devices(const ModuleTree& tree, const DeviceMap& map);

}  // namespace hasten::plan
