// Refuses to place a model whose parameters others have.
#pragma once

#include <torch/nn/module.h>

#include <string>

namespace hasten::offload {

/// Refuses a module of which a prepared model, a pipeline, tensor parallelism or a device map has a parameter. `what`:
/// the call that would place it ("dispatch_model").
/// Throws: UsageError with the parameter's name, its holder and the remedy.
void require_unclaimed(const torch::nn::Module& module, const std::string& what);

}  // namespace hasten::offload
