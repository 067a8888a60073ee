// See device_start.h.
#include "offload/load/device_start.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/units/set_tensor.h"
#include "offload/load/unit_partition.h"
#include "offload/units/pinned_ring.h"
#include "offload/units/unit_plan.h"

namespace hasten::offload::detail {
namespace {

const Device kOnDisk("disk");

bool is_accelerator(const Device& device) {
  return std::holds_alternative<int>(device) || std::get<std::string>(device) == "mps";
}

Device in_map(c10::Device device) {
  return device.is_cpu() ? Device("cpu") : Device(static_cast<int>(device.index()));
}

// Gives a tensor other contents; its interceptors and the device of its gradient go along.
void replace_contents(const at::Tensor& tensor, const at::Tensor& value) {
  using interception::Level;
  auto kept = interception::interceptors_of(tensor, Level::kOperators);
  for (auto& interceptor : interception::interceptors_of(tensor, Level::kEveryOperator))
    kept.push_back(std::move(interceptor));
  at::Tensor gradient = tensor.grad();
  set_tensor(tensor, value);
  for (auto& interceptor : kept) interception::add_interceptor(tensor, std::move(interceptor));
  if (gradient.defined() && gradient.device() != value.device())
    at::Tensor(tensor).mutable_grad() = gradient.to(value.device());
}

void refuse_empty(const std::vector<TensorPlace>& places) {
  std::vector<std::string> empty;
  for (const auto& place : places) {
    if (place.tensor.is_meta()) empty.push_back(place.name);
  }
  if (empty.empty()) return;
  throw UsageError(Origin{"offload"}, join(empty),
                   " are empty and cannot be placed. Load a checkpoint, or call offload::materialize(module).");
}

// A weight of memory that operators would cast at each use is cast once.
at::Tensor in_wanted_type(LoadReport& load, const std::string& name, at::Tensor value) {
  const auto cast = load.cast_at_use.find(name);
  if (cast == load.cast_at_use.end()) return value;
  value = value.to(cast->second);
  load.cast_at_use.erase(cast);
  return value;
}

int64_t bytes_at(const std::vector<TensorPlace>& places, c10::Device device) {
  int64_t sum = 0;
  for (const auto& place : places) {
    const bool is_there =
        !place.rests && (place.execution == device ||
                         std::find(place.others.begin(), place.others.end(), device) != place.others.end());
    if (is_there) sum += static_cast<int64_t>(place.tensor.nbytes());
  }
  return sum;
}

// Bytes that units may take on the device.
int64_t room_for_units(const RunOptions& options, const std::vector<TensorPlace>& places, c10::Device device) {
  if (!options.max_memory.empty()) {
    const auto limits = max_memory(options.max_memory);
    if (const double* limit = limits.find(in_map(device)))
      return static_cast<int64_t>(*limit) - bytes_at(places, device);
  }
  const auto free = max_memory();
  const double* limit = free.find(in_map(device));
  return limit == nullptr ? 0 : static_cast<int64_t>(*limit);
}

void report_units(StartedRun& started, const std::vector<StreamUnit>& units, c10::Device execution, bool streamed) {
  for (const auto& unit : units) {
    const Device where = !streamed ? in_map(execution) : unit.streamed ? kOnDisk : Device("cpu");
    started.weights.push_back({unit.name, where, unit.bytes(), streamed, in_map(execution)});
  }
}

std::vector<c10::Device> execution_devices(const std::vector<TensorPlace>& places) {
  std::vector<c10::Device> devices;
  for (const auto& place : places) {
    if (std::find(devices.begin(), devices.end(), place.execution) == devices.end()) devices.push_back(place.execution);
  }
  return devices;
}

}  // namespace

at::Device torch_device_of(const Device& device) {
  if (const auto* index = std::get_if<int>(&device)) return {at::kCUDA, static_cast<c10::DeviceIndex>(*index)};
  return std::get<std::string>(device) == "mps" ? at::Device(at::kMPS) : at::Device(at::kCPU);
}

std::vector<TensorPlace> places_by_map(const torch::nn::Module& module, const std::map<std::string, Device>& devices,
                                       c10::Device main, bool offload_buffers) {
  std::vector<TensorPlace> places;
  std::unordered_map<const c10::TensorImpl*, size_t> indices;
  for (const auto& item : named_tensors(module)) {
    const auto found = devices.find(item.name);
    const Device device = found == devices.end() ? Device("cpu") : found->second;
    const c10::Device execution = is_accelerator(device) ? torch_device_of(device) : main;
    const auto [at, is_new] = indices.try_emplace(item.tensor.unsafeGetTensorImpl(), places.size());
    if (is_new) {
      const bool may_rest = !is_accelerator(device) && !main.is_cpu() && item.tensor.numel() > 0;
      places.push_back({item.name,
                        item.tensor,
                        item.is_buffer,
                        execution,
                        {},
                        may_rest && (!item.is_buffer || offload_buffers),
                        device == kOnDisk});
      continue;
    }
    TensorPlace& place = places[at->second];
    place.on_disk = place.on_disk && device == kOnDisk;
    place.rests = place.rests && !is_accelerator(device);
    if (execution != place.execution &&
        std::find(place.others.begin(), place.others.end(), execution) == place.others.end())
      place.others.push_back(execution);
  }
  return places;
}

void move_to_places(LoadReport& load, const std::vector<TensorPlace>& places) {
  const at::NoGradGuard no_grad;
  refuse_empty(places);
  for (const c10::Device device : execution_devices(places)) {
    std::vector<std::pair<const TensorPlace*, size_t>> moved;
    std::vector<at::Tensor> from;
    for (const auto& place : places) {
      if (place.rests || place.execution != device || place.tensor.device() == device) continue;
      // Tensors that are tied by their memory stay so.
      const auto same = std::find_if(from.begin(), from.end(), [&](const at::Tensor& other) {
        return other.is_alias_of(place.tensor) && other.storage_offset() == place.tensor.storage_offset() &&
               other.sizes() == place.tensor.sizes() && other.strides() == place.tensor.strides();
      });
      moved.emplace_back(&place, static_cast<size_t>(same - from.begin()));
      if (same == from.end()) from.push_back(place.tensor.detach());
    }
    auto values = to_device(from, device);
    std::vector<bool> is_cast(values.size(), false);
    for (const auto& [place, index] : moved) {
      if (!is_cast[index]) values[index] = in_wanted_type(load, place->name, values[index]);
      is_cast[index] = true;
      load.cast_at_use.erase(place->name);
      replace_contents(place->tensor, values[index]);
      load.places.erase(place->name);
    }
  }
  for (const auto& place : places) {
    if (!place.rests) continue;
    if (!place.tensor.is_cpu()) replace_contents(place.tensor, place.tensor.detach().to(at::kCPU));
    if (place.on_disk || load.cast_at_use.count(place.name) == 0) continue;
    replace_contents(place.tensor, in_wanted_type(load, place.name, place.tensor.detach()));
    load.places.erase(place.name);
  }
}

UnitsOf units_of_modules(const torch::nn::Module& module, const std::vector<std::string>& no_split_module_classes,
                         const LoadReport& load, const std::vector<TensorPlace>& places) {
  return [&](c10::Device device, int64_t merge_bytes) {
    std::set<const c10::TensorImpl*> mine, on_disk;
    for (const auto& place : places) {
      if (!place.rests || place.execution != device) continue;
      mine.insert(place.tensor.unsafeGetTensorImpl());
      if (place.on_disk) on_disk.insert(place.tensor.unsafeGetTensorImpl());
    }
    auto units = partition_units(
        module, no_split_module_classes, load.places,
        {.from_memory = true, .merge_bytes = merge_bytes, .takes = [&](const std::string&, const at::Tensor& tensor) {
           return mine.count(tensor.unsafeGetTensorImpl()) > 0;
         }});
    for (auto& unit : units) {
      unit.streamed = std::any_of(unit.tensors.begin(), unit.tensors.end(), [&](const at::Tensor& tensor) {
        return on_disk.count(tensor.unsafeGetTensorImpl()) > 0;
      });
    }
    return units;
  };
}

StartedRun start_run(const std::vector<TensorPlace>& places, const UnitsOf& units_of, const RunOptions& options) {
  StartedRun started;
  const auto run = std::make_shared<DeviceRun>();
  std::map<c10::DeviceIndex, std::vector<StreamUnit>> residents;
  for (const auto& place : places) {
    if (place.rests) continue;
    run->add_resident(place.tensor, place.is_buffer, place.execution, place.others);
    if (place.execution.is_cpu()) continue;
    const std::string module = place.name.substr(0, std::max<size_t>(place.name.rfind('.') + 1, 1) - 1);
    auto& of = residents[place.execution.index()];
    if (of.empty() || of.back().name != module) of.push_back({.name = module});
    of.back().pieces.push_back({{}, 0, place.tensor.nbytes()});
  }
  for (const auto& [index, units] : residents) report_units(started, units, c10::Device(at::kCUDA, index), false);
  for (const c10::Device device : execution_devices(places)) {
    if (device.is_cpu()) continue;
    const int64_t room = room_for_units(options, places, device);
    auto units = units_of(device, std::clamp<int64_t>(room / 2, 0, kUnitBytes));
    if (units.empty()) continue;
    int64_t largest = 0;
    for (const auto& unit : units) largest = std::max(largest, unit.bytes());
    DeviceFeedOptions feed{.page_cache = options.page_cache};
    if (2 * largest > room) {
      feed.num_buffers = 1;
      Logger("offload").warning(text("device ", device.str(), " has room for ", room,
                                     " bytes beside its weights, and the "
                                     "largest unit has ",
                                     largest, ": no unit is read ahead."));
    }
    report_units(started, units, device, true);
    run->add_feed(std::make_unique<DeviceFeed>(std::move(units), device, feed));
  }
  run->start();
  started.run = run;
  return started;
}

}  // namespace hasten::offload::detail
