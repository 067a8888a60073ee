// state_dict: what a module has learned, by name, as PyTorch's nn.Module.state_dict().
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

namespace hasten::parallel {

/// Parameters and buffers of a module and its children under their full names ("0.weight"), detached; the
/// memory is the module's. Every rank of a data-parallel run holds all of them. Collective: no. Blocks: no.
/// Throws: nothing.
std::map<std::string, at::Tensor> state_dict(const torch::nn::Module& module);

}  // namespace hasten::parallel
