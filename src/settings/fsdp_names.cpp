// See fsdp_names.h.
#include "hasten/settings/fsdp_names.h"

namespace hasten::plan {

const std::vector<std::string>& fsdp_strategy_names() {
  static const std::vector<std::string> names = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                                 "HYBRID_SHARD_ZERO2"};
  return names;
}
const std::vector<std::string>& fsdp_wrap_names() {
  static const std::vector<std::string> names = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};
  return names;
}
const std::vector<std::string>& fsdp_prefetch_names() {
  static const std::vector<std::string> names = {"BACKWARD_PRE", "BACKWARD_POST"};
  return names;
}
const std::vector<std::string>& fsdp_state_names() {
  static const std::vector<std::string> names = {"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"};
  return names;
}

}  // namespace hasten::plan
