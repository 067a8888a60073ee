// State of optimizers that was made before the model's parameters were cut over ranks or put on stages.
//
// A parameter that is cut stays the same tensor object, so an optimizer finds its state by it as before. The tensors of
// that state still have the whole sizes. They are cut here as the parameter is.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>

#include "hasten/core/error.h"

namespace hasten::checkpoint {

/// Which parameters of an optimizer are meant; empty: all.
using ParameterChoice = std::function<bool(const at::Tensor& parameter)>;

/// Cuts the state of each chosen parameter that is cut to this rank's part. Drops the state of parameters that lie on
/// other stages alone. Numbers, and state of a part's sizes, stay as they are. The optimizer inside a Larc is treated,
/// too.
/// Throws: UsageError for a cut parameter's state of an unknown class, or of other sizes.
void cut_state_to_parts(torch::optim::Optimizer& optimizer, const Origin& origin, const ParameterChoice& chosen = {});

}  // namespace hasten::checkpoint
