// Layer-wise casting: weights rest in a small dtype and are cast while a layer uses them.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "hasten/offload/units/cast_weights.h"

namespace hasten::offload {

struct CastingOptions {
  /// Regular expressions searched in the dotted names. A module that matches is left alone with all below it.
  std::vector<std::string> skip_modules_pattern = {};
  /// Class names, with or without namespace and "Impl".
  std::vector<std::string> skip_modules_classes = {};
};

/// Stores the floating-point parameters and buffers of Linear, Conv1d to Conv3d and ConvTranspose1d to ConvTranspose3d
/// in `storage_type`. Operators compute with `compute_type`. Tied names share the cast weight. The casts end with the
/// handle, and the weights keep `storage_type`. After Accelerate's attach_layerwise_casting_hooks.
/// Throws: UsageError for a bad regular expression, or an empty weight.
CastWeights layerwise_casting(torch::nn::Module& module, at::ScalarType storage_type, at::ScalarType compute_type,
                              const CastingOptions& options = {});

}  // namespace hasten::offload
