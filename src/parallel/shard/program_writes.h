// A program's writes to parameters between two steps, which count if all ranks wrote the same, as with Ddp. Of one
// mapping each rank has a private copy of what it wrote (offload/units/home.h), whose values are compared.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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

/// Compares the ranks' marks of their writes, one for each name; 0: the rank did not write. Collective: yes. Blocks:
/// until all ranks have come. Throws: UsageError on all ranks, naming the first parameter whose marks differ.
void refuse_different_writes(const std::vector<std::string>& names, const std::vector<int64_t>& marks,
                             const comm::Group& group);

}  // namespace hasten::parallel::shard
