// A program's writes to parameters of one mapping between two steps. Each rank has a private copy of them
// (offload/units/home.h), which counts if all ranks wrote the same, as with Ddp.
#pragma once

#include <memory>
#include <vector>

#include "hasten/comm/group/group.h"
#include "parallel/shard/region_model.h"

namespace hasten::parallel::shard {

/// Private copies whose values are the same on all ranks become the shared values. Collective: yes. Blocks:
/// until all ranks have come. Throws: UsageError on all ranks, naming the first parameter of which the ranks
/// hold different values.
/// Returns whether `flag` is set on any rank.
bool take_in_program_writes(const std::vector<std::shared_ptr<RegionModel>>& models, const comm::Group& group,
                            bool flag);

}  // namespace hasten::parallel::shard
