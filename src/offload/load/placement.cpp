// See placement.h.
#include "hasten/offload/load/placement.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/core/listing.h"
#include "hasten/core/sentence.h"
#include "hasten/files/folders/catalog.h"
#include "offload/map/unclaimed.h"
#include "hasten/offload/units/set_tensor.h"
#include "offload/load/dispatch.h"
#include "offload/load/unit_partition.h"

namespace hasten::offload {
namespace {

bool is_within(const std::string& name, const std::string& module) {
  return module.empty() || name == module || (name.starts_with(module) && name[module.size()] == '.');
}

std::string module_of(const std::string& tensor_name) {
  const size_t dot = tensor_name.rfind('.');
  return dot == std::string::npos ? "" : tensor_name.substr(0, dot);
}

// The tensors of a module, each with the placement that covers it.
class PlacementPlan {
 public:
  PlacementPlan(torch::nn::Module& module, const Placement& placement, const PlaceOptions& options)
      : module_(module), placement_(placement), options_(options) {
    require_blocks();
    std::set<const c10::TensorImpl*> seen;
    for (const auto& item : named_tensors(module)) {
      if (!seen.insert(item.tensor.unsafeGetTensorImpl()).second) continue;
      const std::string block = block_of(item.name);
      items_.push_back({item, block, &at(block)});
    }
  }

  DeviceMap device_map() const {
    DeviceMap map{{"", placement_.execution_device.value_or(Device("cpu"))}};
    for (const auto& [name, placement] : options_.per_block)
      map.set(name, placement.execution_device.value_or(Device("cpu")));
    return map;
  }

  /// Exchanges the contents of tensors that rest in files. Returns where they lie.
  std::map<std::string, LoadedPlace> load() {
    require_weights();
    std::map<std::string, LoadedPlace> places;
    for (const auto& [weights, names] : names_by_map()) {
      files::Catalog catalog(weights);
      if (!options_.module_name.empty()) catalog = catalog.with_prefix(options_.module_name + ".");
      LoadOptions load{.replace_storage = true, .partial = true};
      places.merge(load_checkpoint_in_model(module_, catalog.under(names), load).places);
    }
    return places;
  }

  /// Returns a unit for each module, or for a block that is in memory as a whole, of what computes on `device`.
  std::vector<StreamUnit> units(const std::map<std::string, LoadedPlace>& places, c10::Device device) const {
    std::vector<StreamUnit> units;
    std::unordered_map<std::string, size_t> indices;
    for (const Item& item : items_) {
      if (execution_of(item) != device || !rests_in_files(item)) continue;
      const auto place = places.find(item.ref.name);
      const bool in_file = place != places.end() && place->second.region;
      const bool is_small = !in_file || place->second.bytes < detail::kSmallTensorBytes;
      if (device.is_cpu() ? is_small : item.ref.tensor.numel() == 0) continue;
      const std::string name = item.placement->place_submodules ? item.block : module_of(item.ref.name);
      const auto [at, is_new] = indices.try_emplace(name, units.size());
      if (is_new) units.push_back({.name = name});
      StreamUnit& unit = units[at->second];
      unit.tensor_names.push_back(item.ref.name);
      unit.tensors.push_back(item.ref.tensor);
      unit.pieces.push_back(in_file ? StreamPiece{place->second.region, place->second.offset, place->second.bytes}
                                    : StreamPiece{{}, 0, item.ref.tensor.nbytes()});
      unit.streamed = in_file;
    }
    return units;
  }

  /// Returns true if a block computes on another device than the CPU.
  bool uses_accelerators() const {
    return std::any_of(items_.begin(), items_.end(), [](const Item& item) { return !execution_of(item).is_cpu(); });
  }

  std::vector<detail::TensorPlace> places() const {
    std::vector<detail::TensorPlace> found;
    for (const Item& item : items_) {
      const auto execution = execution_of(item);
      const bool rests = rests_in_files(item) && !execution.is_cpu() && item.ref.tensor.numel() > 0;
      found.push_back({item.ref.name, item.ref.tensor, item.ref.is_buffer, execution, {}, rests, rests});
    }
    return found;
  }

  /// Marks tensors that rest in files. `was_empty`: those that had no memory before.
  void mark(const std::shared_ptr<WeightStreamer>& streamer, const std::set<const c10::TensorImpl*>& was_empty) const {
    for (const Item& item : items_) {
      if (!rests_in_files(item)) continue;
      auto mark = std::make_shared<detail::OffloadMark>();
      mark->streamer = streamer;
      mark->is_placed = true;
      mark->was_in_memory = was_empty.count(item.ref.tensor.unsafeGetTensorImpl()) == 0;
      interception::add_interceptor(item.ref.tensor, std::move(mark));
    }
  }

  std::set<const c10::TensorImpl*> empty() const {
    std::set<const c10::TensorImpl*> found;
    for (const Item& item : items_) {
      if (item.ref.tensor.is_meta()) found.insert(item.ref.tensor.unsafeGetTensorImpl());
    }
    return found;
  }

 private:
  struct Item {
    NamedTensorRef ref;
    std::string block;
    const Placement* placement;
  };

  std::string block_of(const std::string& name) const {
    std::string best;
    for (const auto& [block, placement] : options_.per_block) {
      if (is_within(name, block) && block.size() > best.size()) best = block;
    }
    return best;
  }
  const Placement& at(const std::string& block) const {
    const auto found = options_.per_block.find(block);
    return found == options_.per_block.end() ? placement_ : found->second;
  }
  // Without an execution device operators run where the weights are.
  static c10::Device execution_of(const Item& item) {
    if (item.placement->execution_device) return detail::torch_device_of(*item.placement->execution_device);
    return rests_in_files(item) || item.ref.tensor.is_meta() ? c10::Device(at::kCPU) : item.ref.tensor.device();
  }
  static bool rests_in_files(const Item& item) {
    return item.placement->offload && item.placement->weights_map &&
           (!item.ref.is_buffer || item.placement->offload_buffers);
  }

  void require_blocks() const {
    std::vector<std::string> names;
    for (const auto& item : module_.named_modules("", /*include_self=*/false)) names.push_back(item.key());
    for (const auto& [block, placement] : options_.per_block) {
      if (block.empty() || std::find(names.begin(), names.end(), block) != names.end()) continue;
      throw UsageError(Origin{"offload"}, "place: there is no module '", block, "'", guess_end(block, names),
                       " Its modules are ", core::listing(names), ".");
    }
  }

  std::string name_there(const std::string& name) const {
    return options_.module_name.empty() ? name : options_.module_name + "." + name;
  }

  // All names before any tensor changes.
  void require_weights() const {
    std::vector<std::string> missing;
    std::string hint;
    for (const Item& item : items_) {
      const std::string name = name_there(item.ref.name);
      if (!rests_in_files(item) || item.placement->weights_map->contains(name)) continue;
      if (missing.empty()) hint = did_you_mean(name, item.placement->weights_map->names());
      missing.push_back(name);
    }
    if (missing.empty()) return;
    throw UsageError(Origin{"offload"}, "place: weights_map has no ", join(missing), hint,
                     " Name the module's place in the whole model by module_name.");
  }

  std::vector<std::pair<std::shared_ptr<const files::TensorSource>, std::vector<std::string>>> names_by_map() const {
    std::vector<std::pair<std::shared_ptr<const files::TensorSource>, std::vector<std::string>>> found;
    for (const Item& item : items_) {
      if (!rests_in_files(item)) continue;
      const auto& weights = item.placement->weights_map;
      auto entry = std::find_if(found.begin(), found.end(), [&](const auto& other) { return other.first == weights; });
      if (entry == found.end()) entry = found.insert(found.end(), {weights, {}});
      entry->second.push_back(item.ref.name);
    }
    return found;
  }

  torch::nn::Module& module_;
  const Placement& placement_;
  const PlaceOptions& options_;
  std::vector<Item> items_;
};

}  // namespace

namespace detail {

DispatchStatePtr start_placement(torch::nn::Module& module, const Placement& placement, const PlaceOptions& options) {
  require_unclaimed(module, "place");
  PlacementPlan plan(module, placement, options);
  auto state = std::make_shared<DispatchState>();
  state->map = plan.device_map();
  require_devices(state->map);
  std::optional<at::Device> device;
  if (placement.execution_device) device = torch_device_of(*placement.execution_device);
  state->main = device.value_or(c10::Device(at::kCPU));
  state->transfer = ArgumentTransfer(device, placement.skip_keys, placement.io_same_device);
  const auto empty = plan.empty();
  state->load.places = plan.load();
  std::set<MappedRegion*> seen;
  for (const auto& [name, place] : state->load.places) {
    if (place.region && seen.insert(place.region.get()).second) state->regions.push_back(place.region);
  }
  if (plan.uses_accelerators()) {
    const auto places = plan.places();
    move_to_places(state->load, places);
    const auto units = [&](c10::Device on, int64_t) { return plan.units(state->load.places, on); };
    take_run(*state, start_run(places, units, {}));
  }
  auto units = plan.units(state->load.places, c10::Device(at::kCPU));
  for (const auto& unit : units) {
    state->report.units.push_back({unit.name, placement.execution_device.value_or(Device("cpu")), unit.bytes(),
                                   "streamed", "placed with offload"});
  }
  if (!units.empty()) state->streamer = std::make_shared<WeightStreamer>(std::move(units));
  plan.mark(state->streamer, empty);
  return state;
}

}  // namespace detail

void remove_placement(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& item : named_tensors(module)) detail::end_run(item.tensor);
  for (const auto& item : named_tensors(module)) {
    const auto mark = interception::find_interceptor<detail::OffloadMark>(item.tensor);
    if (!mark || !mark->is_placed) continue;
    if (const auto streamer = mark->streamer.lock()) streamer->stop();
    interception::remove_interceptor(item.tensor, mark.get());
    if (mark->was_in_memory) set_tensor(item.tensor, item.tensor.detach().clone());
  }
}

WeightsScope::WeightsScope(torch::nn::Module& module, const WithWeightsOptions& options) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : named_tensors(module)) {
    if (!options.recurse && item.name.find('.') != std::string::npos) continue;
    if (item.tensor.is_meta()) {
      throw UsageError(Origin{"offload"}, "with_weights: '", item.name, "' of ", module.name(),
                       " is empty. Load a checkpoint, or call offload::materialize(module).");
    }
    tensors.push_back(item.tensor);
  }
  pin_ = std::make_unique<WeightPin>(tensors, options.writable);
  if (!options.device) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    const auto is_same = [&](const auto& pair) { return pair.first.is_same(tensor); };
    if (tensor.device() == *options.device || std::any_of(moved_.begin(), moved_.end(), is_same)) continue;
    auto* impl = tensor.unsafeGetTensorImpl();
    moved_.emplace_back(tensor, at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                                         impl->allow_tensor_metadata_change())));
    set_tensor(tensor, tensor.detach().to(*options.device));
  }
}

WeightsScope::~WeightsScope() {
  for (const auto& [tensor, before] : moved_) tensor.unsafeGetTensorImpl()->shallow_copy_from(before.getIntrusivePtr());
}

}  // namespace hasten::offload
