// Partition of a module's mapped weights into units for streaming.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hasten/offload/load/load.h"
#include "hasten/offload/units/weight_streamer.h"
#include "offload/units/unit_plan.h"

namespace hasten::offload::detail {

/// Smaller tensors are in no unit: they stay in memory once they are read.
constexpr uint64_t kSmallTensorBytes = 64 << 10;

/// Which tensors are in units, and how large merged units may be.
struct PartitionOptions {
  /// Tensors in the heap and small ones too, as pieces without a region: for units that go to a device.
  bool from_memory = false;
  int64_t merge_bytes = kUnitBytes;
  /// Called with the first name of a tensor; all tensors if empty.
  std::function<bool(const std::string& name, const at::Tensor& tensor)> takes = {};
};

/// A unit is a block of a class in the list, or else a module with tensors of its own. It is merged with its neighbours
/// up to merge_bytes. Tensors in the heap, and those below 64 KB, are in no unit: they stay in memory.
std::vector<StreamUnit> partition_units(const torch::nn::Module& module,
                                        const std::vector<std::string>& no_split_module_classes,
                                        const std::map<std::string, LoadedPlace>& places,
                                        const PartitionOptions& options = {});

}  // namespace hasten::offload::detail
