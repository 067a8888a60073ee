// libtorch's fused kernels: a parameter's whole step in one pass through memory, one call for a batch.
//
// For the optimizers for which libtorch has one, on CPU and CUDA: RMSprop has none.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "optim/steps/parameter_batch.h"

namespace hasten::optim::detail {

void fused_step(ParameterBatch& batch, const torch::optim::SGDOptions& options, bool maximize);
void fused_step(ParameterBatch& batch, const torch::optim::AdamOptions& options, bool maximize);
void fused_step(ParameterBatch& batch, const torch::optim::AdamWOptions& options, bool maximize);
void fused_step(ParameterBatch& batch, const torch::optim::AdagradOptions& options, bool maximize);

}  // namespace hasten::optim::detail
