// State of optimizers beside their parameters: libtorch moves parameters to a device, and leaves their state where it
// is.
#pragma once

#include <torch/optim/optimizer.h>

namespace hasten::checkpoint {

/// Moves the state of each parameter to the parameter's device, where a part of it lies elsewhere. For classes that
/// find_codec knows; other optimizers stay as they are.
void move_state_to_parameters(torch::optim::Optimizer& optimizer);

}  // namespace hasten::checkpoint
