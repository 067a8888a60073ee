// Placement: where a module's weights rest and where its operators compute, for a part of a model.
//
// After Accelerate's AlignDevicesHook and attach_align_device_hook. Nothing is attached to modules. The operators that
// use weights read them (offload/units/weight_streamer.h), so a module need not be called for its weights to be there.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/files/base/tensor_source.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/units/weight_streamer.h"

namespace hasten::offload {

struct Placement {
  /// Device that operators compute on; empty: the device of the weights.
  std::optional<Device> execution_device = {};
  /// Weights rest in `weights_map` and are in memory while operators use them. Without a map they stay in memory, which
  /// is where Accelerate puts them, too.
  bool offload = false;
  /// The handle's results go to the device of its first tensor argument.
  bool io_same_device = false;
  /// Values by the names of the whole model. Mapped where they lie in files.
  std::shared_ptr<const files::TensorSource> weights_map = {};
  /// Buffers rest in `weights_map`, too.
  bool offload_buffers = false;
  /// The module and all below are one unit: read and dropped together. false: each module with weights is one.
  bool place_submodules = false;
  /// The handle leaves these arguments where they are: keys of maps, and "#2" for the third argument.
  std::vector<std::string> skip_keys = {};
};

struct PlaceOptions {
  /// Placements of modules below, by name; the longest name that covers a tensor decides.
  std::map<std::string, Placement> per_block = {};
  /// Name of the module in the whole model, in front of names in `weights_map`.
  std::string module_name = {};
};

namespace detail {
DispatchStatePtr start_placement(torch::nn::Module& module, const Placement& placement, const PlaceOptions& options);
}

/// Places a module and all below. Streaming ends with the last copy of the handle; weights then stay over their files.
/// Blocks: on the headers. Throws: UsageError for a device that is not there, a block that the module
/// lacks (with the nearest name), or a weight that weights_map lacks; DataError for other shapes.
template <class M>
Dispatched<M> place(M model, const Placement& placement, const PlaceOptions& options = {}) {
  auto state = detail::start_placement(detail::module_in(model), placement, options);
  return {std::move(model), std::move(state)};
}

/// Ends a placement and moves weights back. Those that were in memory get memory with their values; those that were
/// empty stay over their files.
/// Blocks: on the files. Throws: nothing for a module that is not placed.
void remove_placement(torch::nn::Module& module);

struct WithWeightsOptions {
  /// Opens a scope in which the weights are on this device, as copies. Writes to the copies are lost. Empty: where they
  /// are.
  std::optional<at::Device> device = {};
  bool recurse = false;   ///< also the modules below
  bool writable = false;  ///< streamed weights stay in memory afterwards, so that writes last
};

/// Keeps a module's weights in memory, and on a device, while it exists. See with_weights.
class WeightsScope {
 public:
  explicit WeightsScope(torch::nn::Module& module, const WithWeightsOptions& options = {});
  ~WeightsScope();
  WeightsScope(const WeightsScope&) = delete;
  WeightsScope& operator=(const WeightsScope&) = delete;

 private:
  std::unique_ptr<WeightPin> pin_;
  std::vector<std::pair<at::Tensor, at::Tensor>> moved_;  // a weight, and its contents from before
};

/// Calls `fn` while the module's weights are in memory, and returns what it returns. After Accelerate's
/// align_module_device. Blocks: on the files. Throws: UsageError for an empty weight; DataError for
/// files; exceptions of fn.
template <class F>
auto with_weights(torch::nn::Module& module, F&& fn, const WithWeightsOptions& options = {}) {
  const WeightsScope scope(module, options);
  return std::forward<F>(fn)();
}

}  // namespace hasten::offload
