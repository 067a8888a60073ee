// See device_map.h. The greedy search itself is in infer_device_map.cpp.
#include "hasten/plan/device_map.h"

#include <algorithm>
#include <ostream>
#include <map>
#include <set>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

bool is_at_or_below(std::string_view name, std::string_view parent) {
  if (parent.empty() || name == parent) return true;
  return name.size() > parent.size() && name.starts_with(parent) && name[parent.size()] == '.';
}

// The first `depth` parts of a dotted name.
std::string first_parts(const std::string& name, size_t depth) {
  size_t end = 0;
  for (size_t i = 0; i < depth; ++i) {
    end = name.find('.', i == 0 ? 0 : end + 1);
    if (end == std::string::npos) return name;
  }
  return name.substr(0, end);
}

void clean_below(std::vector<DeviceMap::Entry>& entries, const std::string& module) {
  const std::string prefix = module.empty() ? "" : module + ".";
  std::set<std::string> devices;
  size_t count = 0;
  Device device;
  for (const auto& [name, value] : entries) {
    if (!name.starts_with(prefix)) continue;
    device = value;
    devices.insert(text(std::holds_alternative<int>(value) ? "#" : "", device_text(value)));
    ++count;
  }
  if (devices.size() == 1 && count > 1) {
    std::erase_if(entries, [&](const auto& entry) { return entry.first.starts_with(prefix); });
    std::erase_if(entries, [&](const auto& entry) { return entry.first == module; });
    entries.emplace_back(module, device);
  }
  const size_t depth = module.empty() ? 1 : static_cast<size_t>(std::count(module.begin(), module.end(), '.')) + 2;
  std::set<std::string> children;
  for (const auto& [name, value] : entries) {
    if (name.starts_with(prefix) && name.size() > module.size()) children.insert(first_parts(name, depth));
  }
  for (const auto& child : children) clean_below(entries, child);
}

}  // namespace

const Device* DeviceMap::find(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.first == name; });
  return found == entries_.end() ? nullptr : &found->second;
}

void DeviceMap::set(const std::string& name, Device device) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.first == name; });
  if (found != entries_.end()) {
    found->second = std::move(device);
  } else {
    entries_.emplace_back(name, std::move(device));
  }
}

void DeviceMap::erase(std::string_view name) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == name; });
}

const Device* DeviceMap::device_of(std::string_view name) const {
  const Device* best = nullptr;
  size_t length = 0;
  for (const auto& [key, device] : entries_) {
    if (!is_at_or_below(name, key) || (best != nullptr && key.size() < length)) continue;
    best = &device;
    length = key.size();
  }
  return best;
}

std::string DeviceMap::to_json() const {
  auto value = core::Value::map();
  for (const auto& [name, device] : entries_) {
    if (const int* index = std::get_if<int>(&device)) {
      value[name] = *index;
    } else {
      value[name] = std::get<std::string>(device);
    }
  }
  return value.to_json();
}

std::ostream& operator<<(std::ostream& out, const DeviceMap& map) {
  return out << map.to_json();
}

DeviceMap DeviceMap::from_json(const core::Value& value) {
  DeviceMap map;
  for (const auto& [name, device] : value.as_map()) {
    map.set(name, device.is_int() ? Device(static_cast<int>(device.as_int())) : parse_device(device.as_string()));
  }
  return map;
}

DeviceMap clean_device_map(DeviceMap map) {
  auto entries = map.entries();
  clean_below(entries, "");
  return DeviceMap(std::move(entries));
}

DeviceMapCheck examine_device_map(const ModuleTree& tree, const DeviceMap& map) {
  DeviceMapCheck check;
  for (const auto& [name, device] : map.entries()) {
    if (!name.empty() && tree.find(name) == nullptr) check.unknown_modules.push_back(name);
  }
  // A single name of a tied tensor is enough.
  std::set<int64_t> covered;
  const auto note_covered = [&](const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& item : tensors) {
      if (map.device_of(item.name) != nullptr) covered.insert(item.tensor->identity);
    }
  };
  const auto add_uncovered = [&](const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& item : tensors) {
      if (item.tensor->persistent && covered.count(item.tensor->identity) == 0)
        check.uncovered_tensors.push_back(item.name);
    }
  };
  note_covered(tree.all_parameters());
  note_covered(tree.buffers());
  add_uncovered(tree.all_parameters());
  add_uncovered(tree.buffers());
  return check;
}

std::vector<TieAcrossDevices> ties_across_devices(const ModuleTree& tree, const DeviceMap& map) {
  std::map<std::string, const TensorNode*> tensors;
  for (const NamedTensor& item : tree.all_parameters()) tensors[item.name] = item.tensor;
  std::vector<TieAcrossDevices> ties;
  for (const auto& names : find_tied_parameters(tree)) {
    TieAcrossDevices tie{.names = names};
    std::set<Device> memories;
    for (const auto& name : names) {
      const Device* device = map.device_of(name);
      if (device == nullptr) continue;  // goes with the others
      if (std::find(tie.devices.begin(), tie.devices.end(), *device) == tie.devices.end())
        tie.devices.push_back(*device);
      memories.insert(*device == Device("disk") ? Device("cpu") : *device);
    }
    if (tie.devices.size() < 2) continue;
    const TensorNode& tensor = *tensors.at(names.front());
    tie.extra_bytes = static_cast<double>(memories.size() - 1) * tensor.num_elements() * dtype_byte_size(tensor.dtype);
    ties.push_back(std::move(tie));
  }
  return ties;
}

std::string check_device_map(const ModuleTree& tree, const DeviceMap& map) {
  const DeviceMapCheck check = examine_device_map(tree, map);
  std::vector<std::string> names;
  std::set<std::string> tensors;
  for (const auto& [name, module] : tree.modules()) names.push_back(name);
  for (const NamedTensor& item : tree.all_parameters()) tensors.insert(item.name);
  for (const NamedTensor& item : tree.buffers()) tensors.insert(item.name);
  names.insert(names.end(), tensors.begin(), tensors.end());

  std::string warning;
  for (const auto& name : check.unknown_modules) {
    if (tensors.count(name) > 0) continue;
    warning += text(warning.empty() ? "the device map names modules that the model lacks: '" : ", '", name, "'",
                    did_you_mean(name, names));
  }
  if (!check.uncovered_tensors.empty()) {
    throw UsageError(Origin{"plan"}, "the device map gives no device for ",
                     count_text(check.uncovered_tensors.size(), "tensor"),
                     ": ", join(check.uncovered_tensors),
                     ". Add their modules, or an entry \"\" for all others.", warning.empty() ? "" : " Also, ",
                     warning);
  }
  return warning;
}

}  // namespace hasten::plan
