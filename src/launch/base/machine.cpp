// Reading /sys, /proc and /dev; see machine.h.
#include "hasten/launch/base/machine.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "hasten/core/cpu_quota.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The number in a file, `fallback` if there is none.
int number_of(const std::string& path, int fallback) {
  std::istringstream line(line_of(path));
  int number = fallback;
  return line >> number ? number : fallback;
}

// The lowest number in a list of the kernel's, `fallback` if there is none.
int lowest_of(const std::string& path, int fallback) {
  const std::set<int> numbers = numbers_in(line_of(path));
  return numbers.empty() ? fallback : *numbers.begin();
}

std::set<int> allowed_cpus() {
  cpu_set_t set;
  std::set<int> allowed;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (CPU_ISSET(number, &set)) allowed.insert(number);
  }
  return allowed;
}

std::map<int, int> node_of_cpus(const std::string& root) {
  std::map<int, int> nodes;
  for (const int node : numbers_in(line_of(root + "/sys/devices/system/node/online"))) {
    const std::string list = text(root, "/sys/devices/system/node/node", node, "/cpulist");
    for (const int cpu : numbers_in(line_of(list))) nodes[cpu] = node;
  }
  return nodes;
}

// The list of the last level of cache that exists.
int cache_of(const std::string& cpu_folder, int fallback) {
  int lowest = fallback;
  for (int index = 0;; ++index) {
    const std::string list = text(cpu_folder, "/cache/index", index, "/shared_cpu_list");
    if (!fs::exists(list)) return lowest;
    lowest = lowest_of(list, fallback);
  }
}

// The entries of a folder that are `stem` and a number.
size_t num_numbered(const std::string& folder, const std::string& stem) {
  size_t count = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    const std::string number = name.starts_with(stem) ? name.substr(stem.size()) : "";
    count += !number.empty() && std::all_of(number.begin(), number.end(), ::isdigit);
  }
  return count;
}

// GPUs that NVIDIA's driver for PCI does not list: its device files in a sandbox, AMD's, one behind Windows or on a
// chip.
size_t num_gpus_elsewhere(const std::string& root) {
  if (const size_t files = num_numbered(root + "/dev", "nvidia"); files > 0) return files;
  size_t count = 0;
  std::error_code none;
  for (const auto& node : fs::directory_iterator(root + "/sys/class/kfd/kfd/topology/nodes", none)) {
    count += number_of(node.path() / "gpu_id", 0) != 0;
  }
  if (count > 0) return count;
  for (const char* file : {"/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu"}) {
    if (fs::exists(root + file, none)) return 1;
  }
  return 0;
}

// NVIDIA's driver lists its GPUs by their place on the bus, the order of CUDA_DEVICE_ORDER=PCI_BUS_ID.
std::vector<int> nodes_of_gpus(const std::string& root) {
  std::vector<std::string> places;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root + "/proc/driver/nvidia/gpus", none)) {
    places.push_back(entry.path().filename());
  }
  std::sort(places.begin(), places.end());
  std::vector<int> nodes;
  for (const std::string& place : places) {
    nodes.push_back(number_of(root + "/sys/bus/pci/devices/" + place + "/numa_node", -1));
  }
  if (nodes.empty()) nodes.assign(num_gpus_elsewhere(root), -1);
  return nodes;
}

// Accelerators of other makers, by the device files of their drivers.
std::set<std::string> accelerators_of(const std::string& root) {
  static const std::pair<const char*, std::pair<const char*, const char*>> kFiles[] = {
      {"TPU", {"/dev", "accel"}},         {"HPU", {"/dev/accel", "accel"}}, {"NPU", {"/dev", "davinci"}},
      {"MLU", {"/dev", "cambricon_dev"}}, {"MUSA", {"/dev", "mtgpu"}},      {"SDAA", {"/dev", "tcaicard"}},
      {"XPU", {"/dev/dri", "render"}},    {"NEURON", {"/dev", "neuron"}}};
  std::set<std::string> found;
  for (const auto& [kind, place] : kFiles) {
    if (num_numbered(root + place.first, place.second) > 0) found.insert(kind);
  }
  // Later TPUs have no file of their own; gVNIC, a network card, has the same maker.
  static const std::set<std::string> kTpus = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root + "/sys/bus/pci/devices", none)) {
    const bool is_googles = line_of(entry.path() / "vendor") == "0x1ae0";
    if (is_googles && kTpus.count(line_of(entry.path() / "device")) != 0) found.insert("TPU");
  }
  return found;
}

// The GPUs that CUDA_VISIBLE_DEVICES leaves. Names that are no numbers (GPU-…, MIG-…) have no known node.
std::vector<int> visible(const std::vector<int>& nodes, const Environment& environment) {
  const auto chosen = environment.variables().find("CUDA_VISIBLE_DEVICES");
  if (chosen == environment.variables().end()) return nodes;
  std::vector<int> left;
  for (const std::string& name : core::split(chosen->second, ',')) {
    const bool is_number = !name.empty() && std::all_of(name.begin(), name.end(), ::isdigit);
    size_t index = nodes.size();  // as one is that is too large for any number
    if (is_number) std::from_chars(name.data(), name.data() + name.size(), index);
    if (is_number && index >= nodes.size()) break;  // CUDA stops at the first that does not exist
    if (!nodes.empty()) left.push_back(is_number ? nodes[index] : -1);
  }
  return left;
}

}  // namespace

int Machine::num_physical_cores() const {
  std::set<int> cores;
  for (const Cpu& cpu : cpus) cores.insert(cpu.core);
  return std::max(1, std::min(static_cast<int>(cores.size()), cpu_quota.value_or(INT_MAX)));
}

int Machine::num_cpus() const {
  return std::max(1, std::min(static_cast<int>(cpus.size()), cpu_quota.value_or(INT_MAX)));
}

Machine this_machine(const Environment& environment, std::string root) {
  if (root.empty()) root = environment.text("HASTEN_MACHINE_ROOT").value_or("");
  Machine machine;
  const std::map<int, int> nodes = node_of_cpus(root);
  for (const int number : allowed_cpus()) {
    const std::string folder = text(root, "/sys/devices/system/cpu/cpu", number);
    const auto node = nodes.find(number);
    machine.cpus.push_back({.number = number,
                            .core = lowest_of(folder + "/topology/thread_siblings_list", number),
                            .node = node == nodes.end() ? 0 : node->second,
                            .socket = number_of(folder + "/topology/physical_package_id", 0),
                            .cache = cache_of(folder, number)});
  }
  machine.gpu_nodes = visible(nodes_of_gpus(root), environment);
  machine.accelerators = accelerators_of(root);
  machine.cpu_quota = hasten::cpu_quota(root);
  std::error_code ignored;
  machine.folder = fs::current_path(ignored);
  return machine;
}

std::set<int> numbers_in(const std::string& ranges) {
  std::set<int> numbers;
  for (const std::string& part : core::split(ranges, ',')) {
    std::istringstream ends(part);
    int first = 0, last = 0;
    char dash = 0;
    if (!(ends >> first)) continue;
    if (!(ends >> dash >> last)) last = first;
    for (int number = first; number <= last; ++number) numbers.insert(number);
  }
  return numbers;
}

}  // namespace hasten::launcher
