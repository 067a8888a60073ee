// Device maps of modules: the pure functions of plan/, for a torch::nn::Module.
//
// plan/device_map.h holds the maps and their meaning. This unit reads a module's tree and the devices of this process.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/plan/device_map.h"
#include "hasten/plan/memory_limits.h"
#include "hasten/plan/module_sizes.h"
#include "hasten/plan/module_tree.h"

namespace hasten::offload {

using plan::Bytes;
using plan::Device;
using plan::DeviceMap;
using plan::ModuleTree;

/// Returns the names, classes, shapes and dtypes of the module's tensors. Parameters and buffers of one tensor object
/// have one identity.
ModuleTree tree_of(const torch::nn::Module& module);
/// Returns the tree that the names of a checkpoint describe: maps without the module (plan::ModuleTree::from_names).
ModuleTree tree_of(const files::TensorSource& source);

struct MapOptions {
  /// Bytes or text ("20GiB") by device; empty: what max_memory() finds.
  std::vector<std::pair<Device, Bytes>> max_memory = {};
  /// Class names, with or without namespace and "Impl": "LlamaBlock".
  std::vector<std::string> no_split_module_classes = {};
  std::optional<at::ScalarType> dtype = {};
  std::map<std::string, at::ScalarType> special_dtypes = {};
  bool clean_result = true, offload_buffers = false, fallback_allocation = false;
  /// Is given one line for each step of the search.
  std::function<void(std::string_view)> verbose = {};
};

/// Returns the limits in filling order: free bytes of each accelerator and, for "cpu", what this process may still take
/// (plan::available_memory_bytes). A user's limits replace them all.
/// Throws: UsageError for an unknown device or size.
plan::MemoryLimits max_memory(const std::vector<std::pair<Device, Bytes>>& limits = {});

/// Accelerate's functions of these names.
/// Throws: UsageError for an unknown dtype or device.
DeviceMap infer_auto_device_map(const ModuleTree& tree, const MapOptions& options = {});
DeviceMap infer_auto_device_map(const torch::nn::Module& module, const MapOptions& options = {});
plan::MemoryLimits get_balanced_memory(const ModuleTree& tree, const MapOptions& options = {}, bool low_zero = false);

/// Returns the module's map for a policy. "auto" and "balanced": even shares. "balanced_low_0": accelerator 0 as free
/// as possible. "sequential": each device full before the next. Throws: UsageError for another text, with the nearest
/// one.
DeviceMap device_map_by_name(const ModuleTree& tree, const std::string& name, const MapOptions& options = {});

/// Returns groups of parameter names that share one tensor.
std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& module);
/// Gives all names of a group one tensor's contents: the first that is not on meta. Members, dictionary and storage are
/// shared afterwards. Throws: UsageError for a name that the module lacks, or shapes that differ.
void retie_parameters(torch::nn::Module& module, const std::vector<std::vector<std::string>>& groups);
/// Ties the named parameters: all have the first one's contents.
void tie(torch::nn::Module& module, const std::vector<std::string>& names);

/// A name of a module's tensor with the tensor. Tied names are all there.
struct NamedTensorRef {
  std::string name;
  at::Tensor tensor;
  bool is_buffer;
};
/// Returns all parameters, then all buffers, in the order of the modules.
std::vector<NamedTensorRef> named_tensors(const torch::nn::Module& module);

}  // namespace hasten::offload
