// See build.h.
#include "hasten/parallel/shard/build.h"

#include "hasten/parallel/shard/sharding.h"

namespace hasten::parallel {

bool splits_models(const std::shared_ptr<Sharding>& sharding) noexcept {
  return sharding && sharding->options().stage != ShardStage::kNone;
}

bool place_split_models(const std::shared_ptr<Sharding>& sharding, c10::Device device) {
  if (!splits_models(sharding)) return false;
  sharding->set_device(device);
  return !device.is_cpu();
}

bool settle_empty(torch::nn::Module& module, bool shared) {
  if (offload::empty_tensors(module).empty()) return false;
  if (!shared) offload::materialize(module);
  return shared;
}

}  // namespace hasten::parallel
