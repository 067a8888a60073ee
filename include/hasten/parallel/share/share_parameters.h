// HogWild: one copy of the parameters for all processes of a host, which step it without a lock.
//
// After Recht and others, Hogwild (2011), and torch's share_memory(). The module keeps its parameters. Only their
// memory moves to a region that all ranks of the group map. Gradients stay each process's own.
#pragma once

#include <torch/nn/module.h>

#include "hasten/comm/group/group.h"

namespace hasten::parallel {

/// Moves parameters and buffers to memory that all ranks of the group share. Rank 0's values count. The module's
/// tensors stay the same objects, so optimizers that hold them go on. Writes of a rank become visible to all, in no
/// order.
/// Collective: yes. Blocks: until all ranks have moved theirs. Throws: UsageError on all ranks, for ranks on several
/// hosts, or tensors that are not on the CPU; UsageError for views of a larger storage, or other shapes than rank 0's.
void share_parameters_(torch::nn::Module& module, const comm::Group& group);

}  // namespace hasten::parallel
