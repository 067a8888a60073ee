// See device_maps.h.
#include "rpc/device_maps.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::rpc {
namespace {

bool is_among(const std::vector<c10::Device>& devices, c10::Device device) {
  return devices.empty() || std::find(devices.begin(), devices.end(), device) != devices.end();
}

// Why a worker has no such device for calls; "" if it has.
std::string device_fault(const WorkerDevices& worker, c10::Device device) {
  if (!device.is_cuda())
    return text(device.str(), " of '", worker.name, "' is no CUDA device; tensors elsewhere need no map");
  if (!device.has_index() || device.index() >= worker.num_cuda)
    return text(device.str(), " does not exist at '", worker.name, "', which has ", worker.num_cuda, " CUDA devices");
  if (!is_among(worker.devices, device))
    return text(device.str(), " is not among the RpcOptions::devices of '", worker.name, "'");
  return "";
}

std::string map_faults(const WorkerDevices& from, const WorkerDevices& to, const DeviceMaps::mapped_type& map) {
  std::string faults;
  std::map<c10::Device, c10::Device, DeviceLess> sources;
  const auto add = [&](const std::string& fault) {
    if (!fault.empty()) faults += text(" The map of '", from.name, "' to '", to.name, "': ", fault, '.');
  };
  for (const auto& [here, there] : map) {
    add(device_fault(from, here));
    add(device_fault(to, there));
    const auto [first, is_new] = sources.emplace(there, here);
    if (!is_new)
      add(text(first->second.str(), " and ", here.str(), " both go to ", there.str(), "; a map is one to one"));
  }
  return faults;
}

bool is_called(const WorkerDevices& worker, const std::string& name) {
  return worker.name == name || (!name.empty() && worker.second_name == name);
}

// A worker's own name counts before the second name of another.
std::vector<WorkerDevices>::const_iterator find_worker(const std::vector<WorkerDevices>& all, const std::string& name) {
  const auto own = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  return own != all.end() ? own
                          : std::find_if(all.begin(), all.end(), [&](const auto& one) { return is_called(one, name); });
}

const DeviceMaps::mapped_type* map_to(const WorkerDevices& from, const WorkerDevices& to) {
  auto found = from.maps.find(to.name);
  if (found == from.maps.end() && !to.second_name.empty()) found = from.maps.find(to.second_name);
  return found == from.maps.end() ? nullptr : &found->second;
}

}  // namespace

std::string device_problems(const std::vector<WorkerDevices>& all) {
  std::vector<std::string> names;
  for (const auto& worker : all) names.push_back(worker.name);
  std::string problems;
  for (const auto& from : all) {
    for (const c10::Device& device : from.devices) {
      if (device.is_cuda() && device.has_index() && device.index() < from.num_cuda) continue;
      problems += text(" RpcOptions::devices of '", from.name, "' has ", device.str(), "; the worker has ",
                       from.num_cuda, " CUDA devices.");
    }
    for (const auto& [name, map] : from.maps) {
      const auto to = find_worker(all, name);
      problems += to == all.end() ? text(" '", from.name, "' maps devices to '", name, "', which is no worker",
                                         did_you_mean(name, names))
                                  : map_faults(from, *to, map);
    }
  }
  return problems;
}

std::optional<c10::Device> mapped_device(const WorkerDevices& from, const WorkerDevices& to, c10::Device device,
                                         bool is_reply) {
  const auto forwards = [&]() -> std::optional<c10::Device> {
    const auto* map = map_to(from, to);
    if (map == nullptr) return {};
    const auto found = map->find(device);
    return found == map->end() ? std::nullopt : std::optional(found->second);
  };
  const auto backwards = [&]() -> std::optional<c10::Device> {
    const auto* map = map_to(to, from);
    if (map == nullptr) return {};
    for (const auto& [theirs, mine] : *map) {
      if (mine == device) return theirs;
    }
    return {};
  };
  const auto first = is_reply ? backwards() : forwards();
  return first ? first : is_reply ? forwards() : backwards();
}

std::string device_lines(const WorkerDevices& own) {
  std::string lines = text("devices\t", own.num_cuda, '\t');
  for (const c10::Device& device : own.devices) lines += device.str() + " ";
  lines += "\n";
  for (const auto& [name, map] : own.maps) {
    lines += text("map\t", name, '\t');
    for (const auto& [here, there] : map) lines += here.str() + " " + there.str() + " ";
    lines += "\n";
  }
  return lines;
}

bool take_device_line(std::string_view line, WorkerDevices& into) {
  const size_t first = line.find('\t'), second = line.find('\t', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  const std::string kind(line.substr(0, first)), name(line.substr(first + 1, second - first - 1));
  std::istringstream words{std::string(line.substr(second + 1))};
  std::string here, there;
  if (kind == "devices") {
    into.num_cuda = core::whole_number<int>(name).value_or(0);
    while (words >> here) into.devices.emplace_back(here);
    return true;
  }
  if (kind != "map") return false;
  auto& map = into.maps[name];
  while (words >> here >> there) map.emplace(c10::Device(here), c10::Device(there));
  return true;
}

}  // namespace hasten::rpc
