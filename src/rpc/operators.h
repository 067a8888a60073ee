// Functions that every agent serves: fetching an RRef's value, gathering, operators.
#pragma once

#include "hasten/rpc/functions.h"

namespace hasten::rpc {

class AgentCore;
Functions own_functions(AgentCore& core);
/// Serves libtorch's operators.
void add_operators(Functions& functions);
/// Serves the optimizers of torch::optim, and those of hasten::optim that step alike.
void add_optimizers(Functions& functions);

}  // namespace hasten::rpc
