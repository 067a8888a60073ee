// move_module: a module from the host to a device, by way of pinned memory.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace hasten::offload {

/// Does what module.to(device) does. Parameters and buffers on the host go through a ring of pinned pieces, as weights
/// that are loaded. module.to copies each by itself and waits for it.
/// Blocks: until the host's memory is read. Throws: c10::OutOfMemoryError.
void move_module(torch::nn::Module& module, c10::Device device);

}  // namespace hasten::offload
