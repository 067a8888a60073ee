// process_group: a Group as libtorch's own c10d::ProcessGroup, so that code of libtorch's runs over it.
//
// Collectives on its CPU tensors go through the Group: over shared memory where that is its backend, with its
// agreement and its errors. hasten itself does not need it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "hasten/comm/group/group.h"

namespace hasten::comm {

/// The same ranks; it keeps the group alive. `allreduce` (`allreduce_coalesced`, too), `broadcast`, `reduce`,
/// `allgather`, `gather`, `scatter`, `reduce_scatter`, `alltoall` with their flat forms, `send`, `recv` and
/// `barrier`; other calls throw as c10d's own backends do where they lack them. One tensor a call. Timeouts
/// are the group's, whatever the options of a call say, but for that of a work's wait()
/// over shared memory. Collective: no (its
/// calls are). Blocks: no. Throws: nothing but what an allocation throws.
c10::intrusive_ptr<c10d::ProcessGroup> process_group(const Group& group);

}  // namespace hasten::comm
