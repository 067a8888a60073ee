// Whether a model is dispatched, so that what would move it leaves it where it is.
#pragma once

#include <torch/nn/module.h>

namespace hasten::offload {

/// Returns true if a device map or a Placement has weights of the module on devices, or reads them while it runs. A
/// model whose weights are mapped files in memory is none.
bool is_dispatched(const torch::nn::Module& module);

}  // namespace hasten::offload
