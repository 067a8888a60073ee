// Accelerate's names of FSDP's settings, in the order of their numbers.
#pragma once

#include <string>
#include <vector>

namespace hasten::plan {

/// "FULL_SHARD" is number 1.
const std::vector<std::string>& fsdp_strategy_names();
/// Without numbers.
const std::vector<std::string>& fsdp_wrap_names();
/// "BACKWARD_PRE" is number 1. "NO_PREFETCH", which unsets it, is not among them.
const std::vector<std::string>& fsdp_prefetch_names();
/// "FULL_STATE_DICT" is number 1.
const std::vector<std::string>& fsdp_state_names();

}  // namespace hasten::plan
