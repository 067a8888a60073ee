// Tensors in memory as a TensorSource, and Accelerate's OffloadedWeightsLoader.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/folders/catalog.h"

namespace hasten::offload {

/// Names and tensors, in the order of a state dict.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns a source over the tensors, which it shares. `name` appears in messages. Throws: UsageError for a tensor
/// without values.
files::TensorSourcePtr memory_source(NamedTensors tensors, const std::string& name = "the state dict");

struct OffloadedWeights {
  NamedTensors state_dict = {};
  std::string save_folder = {};
  std::optional<core::Value> index = {};
};

/// Returns the tensors of a state dict and of a folder or index. If a name is in both, the state dict wins.
/// Blocks: on the index. Throws: UsageError if there is none of the three; DataError for a broken
/// index.
files::Catalog offloaded_weights_loader(const OffloadedWeights& weights);

}  // namespace hasten::offload
