// recompute_layers: the members of a model's Sequentials, computed again in backward instead of keeping activations
// (FSDP's activation_checkpointing).
//
// Modules of libtorch's C++ API have no common forward that could be replaced. A Sequential calls its members through
// AnyModule, which can. Names, parameters and children stay as they are. Other models call recompute() in their
// forward.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>

namespace hasten::parallel {

/// Lets members of torch::nn::Sequentials in `module` be run by recompute() (recompute.h), and returns their number.
/// These are the members with parameters for which `chosen` is true, of the outermost Sequentials that have such;
/// unset: all. Afterwards Sequential::at<T>(i) of a member throws; ptr(i) and named children are as before. A second
/// call changes nothing. Collective: no. Blocks: no. Throws: nothing.
int64_t recompute_layers(torch::nn::Module& module, const std::function<bool(const torch::nn::Module&)>& chosen = {});

}  // namespace hasten::parallel
