// build: a model whose parameters get memory once a host (DeepSpeed's zero.Init, FSDP's cpu_ram_efficient_loading).
//
// The constructor runs on every rank, but parameters have no memory (offload/load/empty.h) until prepare puts them into the
// host's one copy: rank 0's values, as the constructor gives them, or as ShardOptions::init does. A checkpoint may be loaded
// in between, by every rank alike.
#pragma once

#include <memory>
#include <utility>

#include "hasten/offload/load/empty.h"

namespace hasten::parallel {

class Sharding;

/// Whether models that are prepared from now on share their parameters; false for null.
bool splits_models(const std::shared_ptr<Sharding>& sharding) noexcept;

/// Returns what `fn` returns, a module holder or a shared pointer; without memory for parameters where they will be shared.
/// Collective: no. Blocks: no. Throws: as offload::empty_weights.
template <class F>
auto build(const std::shared_ptr<Sharding>& sharding, F&& fn) {
  return splits_models(sharding) ? offload::empty_weights(std::forward<F>(fn)) : std::forward<F>(fn)();
}

/// Gives the parameters of a module memory that have none, where nothing is shared: as offload::materialize.
/// `shared` true: nothing is done here. Returns whether the module has tensors without memory still.
bool settle_empty(torch::nn::Module& module, bool shared);

}  // namespace hasten::parallel
