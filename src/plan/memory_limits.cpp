// See memory_limits.h.
#include "hasten/plan/memory_limits.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <ostream>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/sentence.h"

namespace hasten::plan {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kNamedDevices{"mps", "cpu", "disk"};

std::optional<int64_t> number_in_file(const fs::path& path) {
  const auto text = core::read_file(path);
  if (!text) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return std::nullopt;  // "max"
  return value;
}

// "inactive_file 4096" in memory.stat; `total_` figures of version 1 count the groups below as well.
int64_t inactive_file_bytes(const fs::path& folder, const char* key) {
  std::istringstream lines(core::read_file(folder / "memory.stat").value_or(""));
  std::string name;
  int64_t value = 0;
  while (lines >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

struct GroupFiles {
  const char *limit, *usage, *inactive;
};

// The smallest rest over the group and its parents.
std::optional<int64_t> smallest_rest(const fs::path& base, fs::path group, const GroupFiles& files) {
  std::optional<int64_t> smallest;
  for (;;) {
    const fs::path folder = base / group.relative_path();
    const auto limit = number_in_file(folder / files.limit);
    const auto usage = number_in_file(folder / files.usage);
    // Version 1 writes the largest number of pages where there is no limit.
    if (limit && usage && *limit < std::numeric_limits<int64_t>::max() / 2) {
      const int64_t rest = std::max<int64_t>(0, *limit - *usage + inactive_file_bytes(folder, files.inactive));
      smallest = std::min(smallest.value_or(rest), rest);
    }
    if (!group.has_relative_path()) return smallest;
    group = group.parent_path();
  }
}

// Leaves of the names: those below which there is no other name. The root is none.
std::vector<std::string> leaves_of(const std::vector<std::pair<std::string, double>>& sizes) {
  std::vector<std::string> leaves;
  for (const auto& [name, bytes] : sizes) {
    if (name.empty()) continue;
    const std::string prefix = name + ".";
    const bool is_leaf =
        std::none_of(sizes.begin(), sizes.end(), [&](const auto& other) { return other.first.starts_with(prefix); });
    if (is_leaf) leaves.push_back(name);
  }
  return leaves;
}

double mean_of_leaf_modules(const ModuleSizes& sizes) {
  auto entries = sizes.entries();
  const auto tensors = leaves_of(entries);
  std::erase_if(entries, [&](const auto& entry) {
    return std::find(tensors.begin(), tensors.end(), entry.first) != tensors.end();
  });
  const auto modules = leaves_of(entries);
  double sum = 0;
  for (const auto& name : modules) sum += sizes.at(name);
  return std::floor(sum / static_cast<double>(std::max<size_t>(modules.size(), 1)));
}

// The largest, over the classes, of that class's first module.
double largest_block(const ModuleTree& tree, const ModuleSizes& sizes, const std::vector<std::string>& classes) {
  std::vector<std::string> left;
  for (const auto& listed : classes) left.push_back(short_class_name(listed));
  double largest = 0;
  for (const auto& [name, bytes] : sizes.entries()) {
    if (name.empty()) continue;
    const auto module = tree.find(name);
    const auto found = module == nullptr ? left.end() : std::find(left.begin(), left.end(), module->class_name);
    if (found == left.end()) continue;
    largest = std::max(largest, bytes);
    left.erase(found);
  }
  return largest;
}

std::vector<double*> accelerators_with_memory(MemoryLimits& limits) {
  std::vector<double*> found;
  for (auto& [device, bytes] : limits.entries) {
    if (std::holds_alternative<int>(device) && bytes > 0) found.push_back(&bytes);
  }
  return found;
}

}  // namespace

std::string device_text(const Device& device) {
  if (const int* index = std::get_if<int>(&device)) return std::to_string(*index);
  return std::get<std::string>(device);
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << device_text(device);
}

Device parse_device(const std::string& device) {
  if (std::find(kNamedDevices.begin(), kNamedDevices.end(), device) != kNamedDevices.end()) return device;
  const size_t colon = device.find(':');
  const std::string_view digits = std::string_view(device).substr(colon == std::string::npos ? 0 : colon + 1);
  const bool is_accelerator =
      colon == std::string::npos || device.substr(0, colon) == "cuda" || device.substr(0, colon) == "xpu";
  int index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (is_accelerator && error == std::errc() && end == digits.data() + digits.size() && index >= 0) return index;
  throw UsageError(Origin{"plan"}, "'", device, "' is no device", guess_end(device, {"cpu", "disk", "mps", "cuda:0"}),
                   " Expected an accelerator's index, 'cuda:N', 'mps', 'cpu' or 'disk'.");
}

const double* MemoryLimits::find(const Device& device) const {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& item) { return item.first == device; });
  return found == entries.end() ? nullptr : &found->second;
}

double* MemoryLimits::find(const Device& device) {
  return const_cast<double*>(std::as_const(*this).find(device));
}

MemoryLimits memory_limits(const MaxMemory& max_memory) {
  MemoryLimits limits;
  for (const auto& [device, size] : max_memory) {
    if (const auto* name = std::get_if<std::string>(&device)) {
      if (std::find(kNamedDevices.begin(), kNamedDevices.end(), *name) == kNamedDevices.end()) {
        throw UsageError(Origin{"plan"}, "max_memory names the device '", *name, "'",
                         guess_end(*name, {"cpu", "disk", "mps"}),
                         " Expected integers for accelerators, 'mps', 'cpu' or 'disk'.");
      }
    }
    // A limit that a calculation has made negative has room for nothing.
    const auto* number = std::get_if<int64_t>(&size);
    limits.entries.emplace_back(device, static_cast<double>(number != nullptr ? *number : parse_bytes(size)));
  }
  const auto rank_of = [](const Device& device) {
    if (std::holds_alternative<int>(device)) return std::pair<size_t, int>(0, std::get<int>(device));
    const auto place = std::find(kNamedDevices.begin(), kNamedDevices.end(), std::get<std::string>(device));
    return std::pair<size_t, int>(1 + static_cast<size_t>(place - kNamedDevices.begin()), 0);
  };
  std::stable_sort(limits.entries.begin(), limits.entries.end(),
                   [&](const auto& one, const auto& other) { return rank_of(one.first) < rank_of(other.first); });
  return limits;
}

std::optional<int64_t> cgroup_available_bytes(const fs::path& proc, const fs::path& cgroup) {
  std::istringstream lines(core::read_file(proc / "self" / "cgroup").value_or(""));
  std::optional<int64_t> smallest;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    std::optional<int64_t> rest;
    if (controllers.empty()) {
      rest = smallest_rest(cgroup, group, {"memory.max", "memory.current", "inactive_file"});
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      rest = smallest_rest(cgroup / "memory", group,
                           {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"});
    }
    if (rest) smallest = std::min(smallest.value_or(*rest), *rest);
  }
  return smallest;
}

int64_t available_memory_bytes(const fs::path& proc, const fs::path& cgroup) {
  const fs::path path = proc / "meminfo";
  std::istringstream lines(core::read_file(path).value_or(""));
  std::optional<int64_t> available;
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (!line.starts_with(kKey)) continue;
    int64_t kilobytes = 0;
    if (std::istringstream(line.substr(kKey.size())) >> kilobytes) available = kilobytes * 1024;
  }
  if (!available) throw DataError(Origin{"plan"}, path.string(), path.string(), " has no line MemAvailable.");
  const auto in_group = cgroup_available_bytes(proc, cgroup);
  return in_group ? std::min(*available, *in_group) : *available;
}

MemoryLimits balanced_memory(const ModuleTree& tree, MemoryLimits limits, const BalanceOptions& options) {
  const auto accelerators = accelerators_with_memory(limits);
  const size_t count = accelerators.size();
  if (count == 0) return limits;
  const bool low_zero = options.low_zero && count > 1;
  if (count == 1 && options.limits_are_default) *accelerators[0] *= 0.9;

  const ModuleSizes sizes = compute_module_sizes(tree, options.sizes);
  double share = std::floor(sizes.total() / static_cast<double>(low_zero ? count - 1 : count));
  const double block = largest_block(tree, sizes, options.no_split_module_classes);
  share += std::floor(1.25 * std::max(block, mean_of_leaf_modules(sizes)));

  double* const zero = limits.find(0);
  for (size_t i = 0; i + 1 < count; ++i) {
    const bool keeps_limit = low_zero && accelerators[i] == zero;
    *accelerators[i] = std::min(keeps_limit ? *zero : share, *accelerators[i]);
  }
  if (low_zero && zero != nullptr) {
    double others = 0;
    for (int i = 1; i < static_cast<int>(count); ++i) {
      if (const double* limit = limits.find(i)) others += *limit;
    }
    *zero = std::min(std::max(0.0, sizes.total() - others), *zero);
  }
  return limits;
}

}  // namespace hasten::plan
