// Dispatching: a model placed by a device map, with what has to be read while it runs.
//
// On a CPU, "cpu" and "disk" both mean: mapped where the weights lie. If the limit for "cpu" is below the model, the
// first units stay in memory and the rest is streamed. On accelerators the modules of "cpu" and "disk" compute on the
// main device, to which their weights are streamed. The model's class does not change: net->forward(x) works as well as
// the handle.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "hasten/files/folders/catalog.h"
#include "hasten/offload/hooks/model_hook.h"
#include "hasten/offload/load/empty.h"
#include "hasten/offload/load/load.h"
#include "hasten/offload/load/pass_of_handle.h"
#include "hasten/offload/map/tree_of.h"
#include "hasten/offload/units/argument_transfer.h"
#include "hasten/offload/units/weight_streamer.h"

namespace hasten::offload {

/// A map, one of the names of device_map_by_name, or none.
class DeviceMapChoice {
 public:
  DeviceMapChoice() = default;
  DeviceMapChoice(const char* name) : choice_(std::string(name)) {}
  DeviceMapChoice(std::string name) : choice_(std::move(name)) {}
  DeviceMapChoice(DeviceMap map) : choice_(std::move(map)) {}
  bool is_none() const noexcept { return std::holds_alternative<std::monostate>(choice_); }
  /// Returns the map for a module. Throws: UsageError for an unknown name.
  DeviceMap map_for(const ModuleTree& tree, const MapOptions& options) const;

 private:
  std::variant<std::monostate, std::string, DeviceMap> choice_;
};

struct DispatchOptions {
  DeviceMapChoice device_map = {};
  /// Limits. That of "cpu" is the memory that weights may take there. That of an accelerator holds for its weights and
  /// the units that are streamed to it.
  std::vector<std::pair<Device, Bytes>> max_memory = {};
  std::vector<std::string> no_split_module_classes = {};
  /// Device of modules that the map puts on "cpu". Empty: the map's first device that is neither cpu nor disk, else
  /// cpu.
  std::optional<Device> main_device = {};
  /// Folder for weights of a module built in memory that go to "disk". Weights that come from files need none.
  std::string offload_dir = {};
  /// Another name of offload_dir, for load_checkpoint_and_dispatch: written to only with copy_to_offload_folder.
  std::string offload_folder = {};
  bool copy_to_offload_folder = false;
  /// Weights of "disk" modules that lie in files already.
  std::shared_ptr<const files::Catalog> offload_index = {};
  bool offload_buffers = false;
  /// Arguments of the handle that stay where they are: keys of maps (std::map<std::string, at::Tensor>), and "#2" for
  /// the third argument. All others go to main_device.
  std::vector<std::string> skip_keys = {};
  /// Accepted for Accelerate's sake, without effect: the operator finds its weight, wherever it is used.
  std::vector<std::string> preload_module_classes = {};
  bool force_hooks = false, offload_state_dict = false;
  /// Loading: see LoadOptions.
  std::optional<at::ScalarType> dtype = {};
  std::vector<std::string> keep_in_fp32_modules = {};
  bool strict = false;
  std::vector<std::pair<std::string, std::string>> rename = {};
  std::function<std::string(const std::string&)> key_map = {};
  std::vector<std::string> transpose = {}, not_saved = {};
  Io io = Io::kAuto;
  Resident resident = Resident::kMapped;
  /// How units beyond the limit of "cpu" are read.
  PageCache page_cache = PageCache::kAuto;

  MapOptions map_options() const;
  LoadOptions load_options() const;
};

/// One line of a report: a unit of weights, where it is, and why.
struct UnitReport {
  std::string name = {};
  Device device = {};
  int64_t bytes = 0;
  std::string action = {};  ///< "resident", "mapped", "streamed"
  std::string reason = {};
};

struct Report {
  std::vector<UnitReport> units = {};
  int64_t budget_bytes = 0, model_bytes = 0;
  /// Returns a table, one line a unit.
  std::string text() const;
};

namespace detail {
class DispatchState;
using DispatchStatePtr = std::shared_ptr<DispatchState>;

/// Returns the parts of a dispatch that do not depend on the module's class.
DispatchStatePtr start_dispatch(torch::nn::Module& module, const DeviceMap& map, const DispatchOptions& options);
DispatchStatePtr start_load_and_dispatch(torch::nn::Module& module, const files::TensorSource& source,
                                         const DispatchOptions& options);
DispatchStatePtr start_cpu_offload(torch::nn::Module& module, const Device& execution_device,
                                   const DispatchOptions& options);
DispatchStatePtr start_disk_offload(torch::nn::Module& module, const std::string& folder,
                                    const DispatchOptions& options);
DispatchStatePtr start_disk_offload(torch::nn::Module& module, const files::TensorSource& source,
                                    const DispatchOptions& options);
const DeviceMap& device_map_of(const DispatchState& state);
const LoadReport& load_report_of(const DispatchState& state);
Report report_of(const DispatchState& state);
StreamCounts stream_counts_of(const DispatchState& state);
HookList& root_hooks_of(DispatchState& state);
const ArgumentTransfer& transfer_of(const DispatchState& state);
std::unique_ptr<PassOfHandle> begin_pass(DispatchState& state);
void reload(DispatchState& state, torch::nn::Module& module, const std::string& path);
[[noreturn]] void refuse_move();
bool has_offloaded(const torch::nn::Module& module);
}  // namespace detail

/// A dispatched model: a value handle over the module and what streams its weights. Copies share both.
template <class M>
class Dispatched {
 public:
  Dispatched(M model, detail::DispatchStatePtr state) : model_(std::move(model)), state_(std::move(state)) {}

  /// Calls the module's forward, with the root's hooks around it. Arguments go to the main device first.
  /// Blocks: on the files. Throws: DataError if a weight file was written to or cannot be read.
  template <class... Args>
  auto operator()(Args&&... args) const {
    return call(std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
  }
  auto* operator->() const { return &*model_; }
  M& model() noexcept { return model_; }
  torch::nn::Module& module() const { return detail::module_in(model_); }

  const DeviceMap& device_map() const { return detail::device_map_of(*state_); }
  const LoadReport& load_report() const { return detail::load_report_of(*state_); }
  Report report() const { return detail::report_of(*state_); }
  /// Returns how many units were read and dropped so far; zeros without streaming.
  StreamCounts stream_counts() const { return detail::stream_counts_of(*state_); }
  /// Adds a hook around operator().
  void add_hook(ModelHookPtr hook, bool append = false) {
    detail::root_hooks_of(*state_).add(module(), std::move(hook), append);
  }
  void remove_hooks() { detail::root_hooks_of(*state_).clear(module()); }
  /// Exchanges all weights for those of another checkpoint of the same names and shapes, between two forwards.
  void reload(const std::string& path) { detail::reload(*state_, module(), path); }
  /// Moves or casts the module. Throws: UsageError if some of its weights are offloaded: undispatch it first.
  template <class... Args>
  void to(Args&&... args) const {
    if (detail::has_offloaded(module())) detail::refuse_move();
    module().to(std::forward<Args>(args)...);
  }

 private:
  template <size_t... index, class... Args>
  auto call(std::index_sequence<index...>, Args&&... args) const {
    auto pass = detail::begin_pass(*state_);
    const auto& transfer = detail::transfer_of(*state_);
    const auto device = transfer.device_of_results(args...);
    const auto forward = [this](auto&&... values) {
      return model_->forward(std::forward<decltype(values)>(values)...);
    };
    auto result = detail::call_with_hooks<std::decay_t<Args>...>(detail::root_hooks_of(*state_), module(), forward,
                                                                 transfer.moved(index, std::forward<Args>(args))...);
    pass.reset();
    transfer.send_back(result, device);
    return result;
  }
  mutable M model_;  // a handle's constness is not the module's
  detail::DispatchStatePtr state_;
};

/// Places a module by a map, as Accelerate's dispatch_model does. Weights for "disk" come from options.offload_index or
/// are written to options.offload_dir. Blocks: on the disk, if it writes. Throws: UsageError if a
/// tensor has no device, a device is not there, or "disk" has neither folder nor index.
template <class M>
Dispatched<M> dispatch_model(M model, const DeviceMap& map, const DispatchOptions& options = {}) {
  auto state = detail::start_dispatch(detail::module_in(model), map, options);
  return {std::move(model), std::move(state)};
}

/// Loads a checkpoint and places the module: the files are mapped, in about a millisecond per gigabyte.
/// Blocks: on the headers. Throws: as load_checkpoint_in_model and dispatch_model.
template <class M>
Dispatched<M> load_checkpoint_and_dispatch(M model, const files::TensorSource& source,
                                           const DispatchOptions& options = {}) {
  auto state = detail::start_load_and_dispatch(detail::module_in(model), source, options);
  return {std::move(model), std::move(state)};
}
template <class M>
Dispatched<M> load_checkpoint_and_dispatch(M model, const std::string& checkpoint,
                                           const DispatchOptions& options = {}) {
  return load_checkpoint_and_dispatch(std::move(model), files::Catalog::open(checkpoint), options);
}

/// Keeps weights in memory and computes on `execution_device`, to which they are streamed; on a CPU both are one place.
/// Throws: UsageError for a device that is not there.
template <class M>
Dispatched<M> cpu_offload(M model, const Device& execution_device = Device("cpu"),
                          const DispatchOptions& options = {}) {
  auto state = detail::start_cpu_offload(detail::module_in(model), execution_device, options);
  return {std::move(model), std::move(state)};
}

/// Moves all weights to `folder`, a .dat file for each tensor, and maps them from there. A folder with an index of the
/// same names and shapes is used as it is. options.main_device computes.
/// Blocks: on the disk. Throws: UsageError if the folder holds another model; DataError.
template <class M>
Dispatched<M> disk_offload(M model, const std::string& folder, const DispatchOptions& options = {}) {
  auto state = detail::start_disk_offload(detail::module_in(model), folder, options);
  return {std::move(model), std::move(state)};
}
/// Uses a checkpoint as it lies.
template <class M>
Dispatched<M> disk_offload(M model, const files::TensorSource& source, const DispatchOptions& options = {}) {
  auto state = detail::start_disk_offload(detail::module_in(model), source, options);
  return {std::move(model), std::move(state)};
}

/// Ends streaming. Weights stay where they lie.
void undispatch(torch::nn::Module& module);
/// Returns true if the tensor, or a tensor of the module, is streamed or on "disk" by its device map or Placement.
bool is_offloaded(const at::Tensor& tensor);
bool is_offloaded(const torch::nn::Module& module);

}  // namespace hasten::offload
