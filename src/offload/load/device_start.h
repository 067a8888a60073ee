// Putting the weights of a module where a map or a Placement has them rest and compute, and running it there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/offload/load/load.h"
#include "hasten/offload/map/tree_of.h"
#include "hasten/offload/units/weight_streamer.h"
#include "offload/load/device_run.h"

namespace hasten::offload::detail {

/// A tensor of the module under all its names.
struct TensorPlace {
  std::string name = {};
  at::Tensor tensor = {};
  bool is_buffer = false;
  c10::Device execution = c10::Device(at::kCPU);
  /// Further devices that its names compute on.
  std::vector<c10::Device> others = {};
  /// On the host while no operator uses it.
  bool rests = false;
  /// Where it rests on the host: whether it leaves this process's memory behind its use.
  bool on_disk = false;
};

at::Device torch_device_of(const Device& device);

/// Returns the places of a map. Names on "cpu" and "disk" compute on `main`. Buffers rest only with `offload_buffers`.
std::vector<TensorPlace> places_by_map(const torch::nn::Module& module, const std::map<std::string, Device>& devices,
                                       c10::Device main, bool offload_buffers);

/// Moves tensors to where they are from now on: those that rest to the host, others to their device. `load` says where
/// they lie in files and what is to be cast, and gives up what it knew of those that have moved.
/// Blocks: for the copies. Throws: UsageError naming empty tensors; c10::OutOfMemoryError.
void move_to_places(LoadReport& load, const std::vector<TensorPlace>& places);

/// Returns the units of the resting tensors of one device.
using UnitsOf = std::function<std::vector<StreamUnit>(c10::Device device, int64_t merge_bytes)>;
/// Units are blocks of the classes, or modules, merged with their neighbours.
UnitsOf units_of_modules(const torch::nn::Module& module, const std::vector<std::string>& no_split_module_classes,
                         const LoadReport& load, const std::vector<TensorPlace>& places);

struct RunOptions {
  std::vector<std::pair<Device, Bytes>> max_memory = {};
  PageCache page_cache = PageCache::kAuto;
};

/// Weights of a module or a unit, for a report.
struct PlacedWeights {
  std::string name = {};
  Device where = {};
  int64_t bytes = 0;
  bool streamed = false;
  Device execution = {};
};

struct StartedRun {
  std::shared_ptr<DeviceRun> run = {};
  std::vector<PlacedWeights> weights = {};
};

/// Begins to run a module whose tensors are in their places.
/// Throws: UsageError for unknown devices or sizes in max_memory.
StartedRun start_run(const std::vector<TensorPlace>& places, const UnitsOf& units_of, const RunOptions& options);

}  // namespace hasten::offload::detail
