// The steps of torch::optim's optimizers in libtorch's foreach operations, each of which is one call for a
// whole batch.
//
// On CUDA that is a few kernel launches for a batch instead of a dozen for each parameter: PyTorch's default there
// (foreach=True). The operations are torch::optim's own, in its order, each with its own rounding. So half precision
// comes out as from torch::optim. PyTorch's foreach takes lerp for some of them. They work on the CPU too, and save
// nothing there.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "optim/steps/parameter_batch.h"

namespace hasten::optim::detail {

void foreach_step(ParameterBatch& batch, const torch::optim::SGDOptions& options, bool maximize);
void foreach_step(ParameterBatch& batch, const torch::optim::AdamOptions& options, bool maximize);
void foreach_step(ParameterBatch& batch, const torch::optim::AdamWOptions& options, bool maximize);
void foreach_step(ParameterBatch& batch, const torch::optim::AdagradOptions& options, bool maximize);
void foreach_step(ParameterBatch& batch, const torch::optim::RMSpropOptions& options, bool maximize);

}  // namespace hasten::optim::detail
