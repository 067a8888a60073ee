// build: a model whose parameters get memory once a host (DeepSpeed's zero.Init, FSDP's cpu_ram_efficient_loading).
//
// The constructor runs on every rank, but parameters have no memory (offload/load/empty.h) until prepare puts them into
// the host's one copy. The values are rank 0's, as the constructor or ShardOptions::init gives them. A checkpoint may
// be loaded in between, by every rank alike.
#pragma once

#include <memory>
#include <utility>

#include "hasten/offload/load/empty.h"

namespace hasten::parallel {

class Sharding;

/// Returns true if models that are prepared from now on share their parameters; false for null.
bool splits_models(const std::shared_ptr<Sharding>& sharding) noexcept;

/// Models that are prepared from now on go to this device. Returns true if the sharding moves them there itself, unit
/// by unit; false for null and the CPU.
bool place_split_models(const std::shared_ptr<Sharding>& sharding, c10::Device device);

/// Returns the result of `fn`, a module holder or a shared pointer. If parameters will be shared, they have no memory.
/// Throws: as offload::empty_weights.
template <class F>
auto build(const std::shared_ptr<Sharding>& sharding, F&& fn) {
  return splits_models(sharding) ? offload::empty_weights(std::forward<F>(fn)) : std::forward<F>(fn)();
}

/// Gives the parameters of a module memory that have none, where nothing is shared: as offload::materialize.
/// `shared` true: nothing is done here. Returns whether the module has tensors without memory still.
bool settle_empty(torch::nn::Module& module, bool shared);

}  // namespace hasten::parallel
