// See dispatch.h.
#include "hasten/offload/load/dispatch.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/files/folders/offload_folder.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/units/cast_weights.h"
#include "hasten/offload/units/set_tensor.h"
#include "hasten/offload/units/weight_streamer.h"
#include "hasten/process/device.h"
#include "offload/load/device_run.h"
#include "offload/load/dispatch.h"
#include "offload/load/unit_partition.h"
#include "offload/load/weights_folder.h"
#include "offload/map/unclaimed.h"
#include "offload/units/unit_plan.h"

namespace hasten::offload {
using detail::OffloadMark;
namespace {

const Device kCpu("cpu"), kDisk("disk");

// A buffer without an entry goes where its module's first tensor is.
std::optional<Device> device_of(const DeviceMap& map, const ModuleTree& tree, const NamedTensorRef& item) {
  if (const Device* device = map.device_of(item.name)) return *device;
  if (!item.is_buffer) return std::nullopt;
  const size_t dot = item.name.rfind('.');
  const std::string module = dot == std::string::npos ? "" : item.name.substr(0, dot);
  const auto node = tree.find(module);
  if (node == nullptr) return std::nullopt;
  for (const auto& parameter : node->parameters) {
    if (const Device* device = map.device_of(module.empty() ? parameter.name : module + "." + parameter.name))
      return *device;
  }
  return std::nullopt;
}

void warn_of_unknown(const plan::DeviceMapCheck& check, const std::map<std::string, Device>& devices) {
  std::vector<std::string> unknown;
  for (const auto& name : check.unknown_modules) {
    if (devices.count(name) == 0) unknown.push_back(name);
  }
  if (!unknown.empty())
    Logger("offload").warning("the device map names modules that the model lacks: " + join(unknown) + ".");
}

std::map<std::string, Device> devices_of(torch::nn::Module& module, const DeviceMap& map) {
  const ModuleTree tree = tree_of(module);
  std::map<std::string, Device> devices;
  bool covered = true;
  for (const auto& item : named_tensors(module)) {
    const auto device = device_of(map, tree, item);
    covered = covered && device.has_value();
    if (device) devices[item.name] = *device;
  }
  if (!covered) plan::check_device_map(tree, map);  // throws, with all names
  warn_of_unknown(plan::examine_device_map(tree, map), devices);
  return devices;
}

// As devices_of, of a map that may leave tensors out while a checkpoint is loaded, as Accelerate's may: the rest is
// "cpu".
std::map<std::string, Device> devices_or_cpu(torch::nn::Module& module, const DeviceMap& map) {
  const ModuleTree tree = tree_of(module);
  std::map<std::string, Device> devices;
  std::vector<std::string> left_out;
  for (const auto& item : named_tensors(module)) {
    const auto device = device_of(map, tree, item);
    if (!device && !item.is_buffer) left_out.push_back(item.name);
    devices[item.name] = device.value_or(kCpu);
  }
  if (!left_out.empty())
    Logger("offload").warning("the device map leaves out " + join(left_out) + ", which stay on the CPU.");
  warn_of_unknown(plan::examine_device_map(tree, map), devices);
  return devices;
}

// Tensors that the map puts on disk under one name and elsewhere under another stay in memory.
std::set<const c10::TensorImpl*> tied_to_memory(torch::nn::Module& module,
                                                const std::map<std::string, Device>& devices) {
  std::set<const c10::TensorImpl*> in_memory;
  for (const auto& item : named_tensors(module)) {
    const auto device = devices.find(item.name);
    if (device != devices.end() && device->second != kDisk) in_memory.insert(item.tensor.unsafeGetTensorImpl());
  }
  return in_memory;
}

}  // namespace

namespace detail {

DispatchState::DispatchState() = default;

DispatchState::~DispatchState() {
  if (run) run->stop();
}

void require_devices(const DeviceMap& map) {
  const int num_devices = process::num_cuda_devices();
  std::set<std::string> absent;
  for (const auto& [name, device] : map.entries()) {
    const int* index = std::get_if<int>(&device);
    const bool is_there = index != nullptr ? *index < num_devices : device == kCpu || device == kDisk;
    if (!is_there) absent.insert(plan::device_text(device));
  }
  if (absent.empty()) return;
  throw UsageError(Origin{"offload"}, "the device map names the devices ", join(absent), ", but this process has ",
                   num_devices == 0 ? text("no GPU") : text("the GPUs 0 to ", num_devices - 1),
                   ". Name those, cpu or disk, or check CUDA_VISIBLE_DEVICES. Modules on other accelerators are moved "
                   "there by Module::to.");
}

void take_run(DispatchState& state, StartedRun started) {
  state.run = std::move(started.run);
  for (auto& weights : started.weights) {
    state.report.units.push_back({std::move(weights.name), weights.where, weights.bytes,
                                  weights.streamed ? "streamed" : "resident",
                                  weights.streamed ? text("computes on ", weights.execution) : text("placed there")});
  }
}

namespace {

int64_t cpu_budget(const DispatchOptions& options) {
  const auto limits = max_memory(options.max_memory);
  const double* limit = limits.find(kCpu);
  return limit == nullptr ? plan::available_memory_bytes() : static_cast<int64_t>(*limit);
}

// Bytes that the module has if its floating-point tensors are of the dtype.
int64_t bytes_in_dtype(const torch::nn::Module& module, std::optional<at::ScalarType> dtype) {
  int64_t sum = 0;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : named_tensors(module)) {
    if (!seen.insert(item.tensor.unsafeGetTensorImpl()).second) continue;
    const bool is_cast = dtype && item.tensor.is_floating_point();
    sum += item.tensor.numel() * static_cast<int64_t>(c10::elementSize(is_cast ? *dtype : item.tensor.scalar_type()));
  }
  return sum;
}

// Weights that rest in the file's dtype, by the dtype they compute in.
void start_casts(DispatchState& state, torch::nn::Module& module) {
  std::map<at::ScalarType, std::vector<at::Tensor>> weights;
  for (const auto& item : named_tensors(module)) {
    const auto cast = state.load.cast_at_use.find(item.name);
    if (cast != state.load.cast_at_use.end()) weights[cast->second].push_back(item.tensor);
  }
  for (auto& [type, tensors] : weights) state.casts.emplace_back(std::move(tensors), type);
}

// Bytes of tensors that compute on a device other than the CPU.
int64_t bytes_elsewhere(const DispatchState& state, const torch::nn::Module& module) {
  int64_t sum = 0;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : named_tensors(module)) {
    const bool is_elsewhere = state.run && state.run->computes_elsewhere(item.tensor);
    if (is_elsewhere && seen.insert(item.tensor.unsafeGetTensorImpl()).second)
      sum += static_cast<int64_t>(item.tensor.nbytes());
  }
  return sum;
}

// Units of what computes on the CPU, their plan, and the streamer if the plan needs one.
void start_units(DispatchState& state, torch::nn::Module& module) {
  auto units = partition_units(module, state.options.no_split_module_classes, state.load.places,
                               {.takes = [&](const std::string&, const at::Tensor& tensor) {
                                 return !state.run || !state.run->computes_elsewhere(tensor);
                               }});
  std::vector<PlannedUnit> planned;
  state.report.model_bytes = bytes_in_dtype(module, {});
  int64_t in_heap = state.report.model_bytes - bytes_elsewhere(state, module);
  for (const auto& unit : units) planned.push_back({unit.name, unit.bytes()});
  for (const auto& unit : planned) in_heap -= unit.bytes;
  const int64_t budget = cpu_budget(state.options);
  state.report.budget_bytes = budget;
  // Weights that the page cache holds count against the limit only if they do not fit it together.
  const UnitPlan plan = plan_units(planned, std::max<int64_t>(budget - std::max<int64_t>(in_heap, 0), 0), budget);
  for (size_t i = 0; i < units.size(); ++i) {
    units[i].streamed = plan.streamed[i];
    const char* const action = !plan.is_streaming() ? "mapped" : plan.streamed[i] ? "streamed" : "resident";
    const char* const reason = !plan.is_streaming() ? "the model fits the limit"
                               : plan.streamed[i]   ? "beyond the limit"
                                                    : "first units within the limit";
    const Device* device = state.map.device_of(units[i].tensor_names.front());
    UnitReport unit{units[i].name, device == nullptr ? kCpu : *device, planned[i].bytes, action, reason};
    // A unit may be of several modules. If the map has one of its tensors on disk, the unit is read from there.
    for (const auto& name : units[i].tensor_names) {
      device = state.map.device_of(name);
      if (device != nullptr && *device == kDisk) unit.device = kDisk;
    }
    state.report.units.push_back(std::move(unit));
  }
  if (plan.is_streaming())
    state.streamer = std::make_shared<WeightStreamer>(std::move(units), state.options.page_cache);
  start_casts(state, module);  // after streaming: a cast reads the weight
}

// Tensors that the map puts on disk, and streamed ones: undispatch finds the streamer by them.
void mark_offloaded(DispatchState& state, torch::nn::Module& module, const std::map<std::string, Device>& devices) {
  auto mark = std::make_shared<OffloadMark>();
  mark->streamer = state.streamer;
  std::set<const c10::TensorImpl*> streamed, seen;
  if (state.streamer) {
    for (const auto& unit : state.streamer->units()) {
      for (const auto& tensor : unit.tensors) streamed.insert(tensor.unsafeGetTensorImpl());
    }
  }
  const auto in_memory = tied_to_memory(module, devices);
  for (const auto& item : named_tensors(module)) {
    const auto device = devices.find(item.name);
    const auto* tensor = item.tensor.unsafeGetTensorImpl();
    const bool on_disk = device != devices.end() && device->second == kDisk && in_memory.count(tensor) == 0 &&
                         (!item.is_buffer || state.options.offload_buffers);
    const bool rests = state.run && state.run->rests(item.tensor);
    if ((on_disk || rests || streamed.count(tensor) > 0) && seen.insert(tensor).second)
      interception::add_interceptor(item.tensor, mark);
  }
}

// Arguments go to the main device, and the result back to where the first tensor came from.
void set_transfer(DispatchState& state) {
  if (state.map.empty()) return;
  std::optional<Device> main = state.options.main_device;
  for (const auto& [name, device] : state.map.entries()) {
    if (!main && device != kCpu && device != kDisk) main = device;
  }
  if (main) require_devices(DeviceMap{{"", *main}});
  state.main = torch_device_of(main.value_or(kCpu));
  state.transfer = ArgumentTransfer(state.main, state.options.skip_keys, /*back=*/true);
}

bool names_accelerator(const DeviceMap& map, const DispatchOptions& options) {
  const auto is_accelerator = [](const Device& device) { return std::holds_alternative<int>(device); };
  return (options.main_device && is_accelerator(*options.main_device)) ||
         std::any_of(map.entries().begin(), map.entries().end(),
                     [&](const auto& entry) { return is_accelerator(entry.second); });
}

// True if a tensor lies where no entry of the map has any.
bool lies_on_accelerator(torch::nn::Module& module) {
  const auto items = named_tensors(module);
  return std::any_of(items.begin(), items.end(),
                     [](const NamedTensorRef& item) { return !item.tensor.is_cpu() && !item.tensor.is_meta(); });
}

// Weights go where the map has them, and operators to the weights.
void start(DispatchState& state, torch::nn::Module& module, const std::map<std::string, Device>& devices) {
  const bool runs_there = names_accelerator(state.map, state.options);
  if (runs_there || (!state.map.empty() && lies_on_accelerator(module))) {
    const auto places = places_by_map(module, devices, state.main, state.options.offload_buffers);
    move_to_places(state.load, places);
    const auto units = units_of_modules(module, state.options.no_split_module_classes, state.load, places);
    if (runs_there) take_run(state, start_run(places, units, {state.options.max_memory, state.options.page_cache}));
  }
  start_units(state, module);
  mark_offloaded(state, module, devices);
}

DispatchStatePtr finish(DispatchStatePtr state, torch::nn::Module& module,
                        const std::map<std::string, Device>& devices) {
  std::set<MappedRegion*> seen;
  for (const auto& [name, place] : state->load.places) {
    if (place.region && seen.insert(place.region.get()).second) state->regions.push_back(place.region);
  }
  set_transfer(*state);
  start(*state, module, devices);
  return state;
}

std::vector<NamedTensorRef> items_on_disk(torch::nn::Module& module, const std::map<std::string, Device>& devices) {
  std::vector<NamedTensorRef> items;
  for (const auto& item : named_tensors(module)) {
    const auto device = devices.find(item.name);
    if (device != devices.end() && device->second == kDisk) items.push_back(item);
  }
  return items;
}

// Exchanges the contents of tensors for those of a source that may have only some of them.
void take_from(DispatchState& state, torch::nn::Module& module, const files::TensorSource& source) {
  LoadOptions load;
  load.io = state.options.io;
  load.dtype = state.options.dtype;
  load.keep_in_fp32_modules = state.options.keep_in_fp32_modules;
  load.replace_storage = true;
  load.partial = true;
  auto places = load_checkpoint_in_model(module, source, load).places;
  for (auto& [name, place] : places) state.load.places[name] = place;
}

// Copies "disk" weights to a folder of its own, as they are in the source, and takes them from there.
void copy_to_folder(DispatchState& state, torch::nn::Module& module, const files::TensorSource& source,
                    const std::map<std::string, Device>& devices) {
  SourceReader reader(source, state.options.io);
  std::vector<NamedTensorRef> items;
  std::vector<std::string> names;
  const auto in_memory = tied_to_memory(module, devices);
  for (const auto& item : items_on_disk(module, devices)) {
    if (!source.contains(item.name) || (item.is_buffer && !state.options.offload_buffers)) continue;
    items.push_back({item.name, reader.tensor(item.name), item.is_buffer});
    if (in_memory.count(item.tensor.unsafeGetTensorImpl()) == 0) names.push_back(item.name);
  }
  write_folder(state.options.offload_folder, items);
  if (!names.empty()) take_from(state, module, files::Catalog::open(state.options.offload_folder).under(names));
}

}  // namespace

DispatchStatePtr start_dispatch(torch::nn::Module& module, const DeviceMap& map, const DispatchOptions& options) {
  require_unclaimed(module, "dispatch_model");
  auto state = std::make_shared<DispatchState>();
  state->map = map;
  state->options = options;
  const auto devices = devices_of(module, map);
  require_devices(map);
  const auto on_disk = items_on_disk(module, devices);
  const auto in_memory = tied_to_memory(module, devices);
  std::vector<std::string> names;
  for (const auto& item : on_disk) {
    if (in_memory.count(item.tensor.unsafeGetTensorImpl()) == 0) names.push_back(item.name);
  }
  if (!on_disk.empty()) {
    if (options.offload_index) {
      std::vector<std::string> from_index;
      for (const auto& item : named_tensors(module)) {
        const bool is_kept = in_memory.count(item.tensor.unsafeGetTensorImpl()) > 0;
        const auto device = devices.find(item.name);
        const bool is_on_disk = device != devices.end() && device->second == kDisk;
        if (!(is_kept && is_on_disk) && options.offload_index->contains(item.name)) from_index.push_back(item.name);
      }
      take_from(*state, module, options.offload_index->under(from_index));
    } else if (options.offload_dir.empty()) {
      std::vector<std::string> modules;
      for (const auto& [name, device] : map.entries()) {
        if (device == kDisk) modules.push_back(name.empty() ? "the whole model" : name);
      }
      throw UsageError(Origin{"offload"}, "the device map puts ", join(modules),
                       " on disk, and the weights are in memory. Set "
                       "offload_dir, a folder to write them to, or offload_index, the files they lie in.");
    } else {
      write_folder(options.offload_dir, on_disk);
      if (!names.empty()) take_from(*state, module, files::Catalog::open(options.offload_dir).under(names));
    }
  }
  return finish(std::move(state), module, devices);
}

DispatchStatePtr start_load_and_dispatch(torch::nn::Module& module, const files::TensorSource& source,
                                         const DispatchOptions& options) {
  require_unclaimed(module, "load_checkpoint_and_dispatch");
  auto state = std::make_shared<DispatchState>();
  state->options = options;
  auto load = options.load_options();
  std::map<std::string, Device> devices;
  if (!options.device_map.is_none()) {
    state->map = options.device_map.map_for(tree_of(module), options.map_options());
    require_devices(state->map);
    devices = devices_or_cpu(module, state->map);
    load.replace_storage = true;
    load.cast_at_use =
        names_accelerator(state->map, options) || bytes_in_dtype(module, options.dtype) > cpu_budget(options);
  }
  state->load = load_checkpoint_in_model(module, source, load);
  if (options.copy_to_offload_folder && !options.offload_folder.empty())
    copy_to_folder(*state, module, source, devices);
  return finish(std::move(state), module, devices);
}

DispatchStatePtr start_cpu_offload(torch::nn::Module& module, const Device& execution_device,
                                   const DispatchOptions& options) {
  require_unclaimed(module, "cpu_offload");
  auto state = std::make_shared<DispatchState>();
  state->map = DeviceMap{{"", kCpu}};
  state->options = options;
  state->options.main_device = plan::parse_device(plan::device_text(execution_device));
  require_devices(DeviceMap{{"", *state->options.main_device}});
  const auto empty = empty_tensors(module);
  if (!empty.empty()) {
    throw UsageError(Origin{"offload"}, "cpu_offload: ", join(empty),
                     " are empty. Load a checkpoint, or call offload::materialize(module).");
  }
  const auto devices = devices_of(module, state->map);
  return finish(std::move(state), module, devices);
}

DispatchStatePtr start_disk_offload(torch::nn::Module& module, const std::string& folder,
                                    const DispatchOptions& options) {
  require_unclaimed(module, "disk_offload");
  const auto items = named_tensors(module);
  if (files::is_offload_folder(folder)) {
    require_same_tensors(*files::open_offload_folder(folder), items, folder);
  } else {
    write_folder(folder, items);
  }
  return start_disk_offload(module, files::Catalog::open(folder), options);
}

DispatchStatePtr start_disk_offload(torch::nn::Module& module, const files::TensorSource& source,
                                    const DispatchOptions& options) {
  require_unclaimed(module, "disk_offload");
  auto state = std::make_shared<DispatchState>();
  state->map = DeviceMap{{"", kDisk}};
  state->options = options;
  auto load = options.load_options();
  load.replace_storage = true;
  state->load = load_checkpoint_in_model(module, source, load);
  const auto devices = devices_of(module, state->map);
  return finish(std::move(state), module, devices);
}

const DeviceMap& device_map_of(const DispatchState& state) {
  return state.map;
}

const LoadReport& load_report_of(const DispatchState& state) {
  return state.load;
}

Report report_of(const DispatchState& state) {
  return state.report;
}

StreamCounts stream_counts_of(const DispatchState& state) {
  StreamCounts counts = state.streamer ? state.streamer->counts() : StreamCounts{};
  if (!state.run) return counts;
  const StreamCounts there = state.run->counts();
  counts.reads += there.reads;
  counts.drops += there.drops;
  counts.resident_bytes += there.resident_bytes;
  return counts;
}

const ArgumentTransfer& transfer_of(const DispatchState& state) {
  return state.transfer;
}

HookList& root_hooks_of(DispatchState& state) {
  return state.hooks;
}

std::unique_ptr<PassOfHandle> begin_pass(DispatchState& state) {
  for (const auto& region : state.regions) region->require_unchanged();
  return state.run ? std::make_unique<DeviceRun::Pass>(state.run, state.main) : nullptr;
}

void reload(DispatchState& state, torch::nn::Module& module, const std::string& path) {
  auto load = state.options.load_options();
  load.replace_storage = true;
  load.strict = true;
  undispatch(module);
  state.streamer.reset();
  state.casts.clear();
  state.run.reset();
  load.cast_at_use = names_accelerator(state.map, state.options) ||
                     bytes_in_dtype(module, state.options.dtype) > cpu_budget(state.options);
  state.load = load_checkpoint_in_model(module, path, load);
  state.regions.clear();
  state.report = {};
  const auto devices = state.map.empty() ? std::map<std::string, Device>() : devices_or_cpu(module, state.map);
  std::set<MappedRegion*> seen;
  for (const auto& [name, place] : state.load.places) {
    if (place.region && seen.insert(place.region.get()).second) state.regions.push_back(place.region);
  }
  start(state, module, devices);
}

bool has_offloaded(const torch::nn::Module& module) {
  return is_offloaded(module);
}

void end_run(const at::Tensor& tensor) {
  if (const auto run = interception::find_interceptor<DeviceRun>(tensor)) run->stop();
}

void refuse_move() {
  throw UsageError(Origin{"offload"},
                   "a dispatched model has its devices from the map. Call offload::undispatch(model.module()) "
                   "before to().");
}

}  // namespace detail

void undispatch(torch::nn::Module& module) {
  for (const auto& item : named_tensors(module)) {
    detail::end_run(item.tensor);
    const auto mark = interception::find_interceptor<OffloadMark>(item.tensor);
    if (!mark) continue;
    if (const auto streamer = mark->streamer.lock()) streamer->stop();
    interception::remove_interceptor(item.tensor, mark.get());
  }
}

bool is_offloaded(const at::Tensor& tensor) {
  return interception::find_interceptor<OffloadMark>(tensor) != nullptr;
}

bool is_offloaded(const torch::nn::Module& module) {
  const auto items = named_tensors(module);
  return std::any_of(items.begin(), items.end(), [](const NamedTensorRef& item) { return is_offloaded(item.tensor); });
}

}  // namespace hasten::offload
