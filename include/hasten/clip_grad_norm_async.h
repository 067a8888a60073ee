// clip_grad_norm_async_: Accelerator::clip_grad_norm_ that gives the norm as a tensor, so that a GPU's queue is not
// waited for.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "hasten/accelerator.h"

namespace hasten {

/// Clips as accelerator.clip_grad_norm_ does. Returns the norm before as a float32 scalar on the gradients' device;
/// reading it waits. Sharded gradients, fp16, a DeepSpeed configuration and another norm than 2 take the way that
/// waits.
/// Collective: where something is split. Blocks: then. Throws: as clip_grad_norm_; UsageError for a max_norm below 0 or
/// NaN.
at::Tensor clip_grad_norm_async_(const Accelerator& accelerator, const std::vector<at::Tensor>& parameters,
                                 double max_norm, double norm_type = 2.0);

}  // namespace hasten
