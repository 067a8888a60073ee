// See build.h.
#include "hasten/parallel/shard/build.h"

#include "hasten/parallel/shard/sharding.h"

namespace hasten::parallel {

bool splits_models(const std::shared_ptr<Sharding>& sharding) noexcept {
  return sharding && sharding->options().stage != ShardStage::kNone;
}

bool settle_empty(torch::nn::Module& module, bool shared) {
  if (offload::empty_tensors(module).empty()) return false;
  if (!shared) offload::materialize(module);
  return shared;
}

}  // namespace hasten::parallel
