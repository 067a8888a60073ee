// Memory limits: bytes that each device may take, in the order in which devices are filled.
//
// The limit of a host is the memory that this process may still take. Inside a container the control group's limit
// counts, without memory that the kernel can reclaim.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "hasten/plan/memory_size.h"
#include "hasten/plan/module_sizes.h"

namespace hasten::plan {

/// An accelerator's index, or "cpu", "disk", "mps".
struct Device : std::variant<int, std::string> {
  using std::variant<int, std::string>::variant;
};
std::string device_text(const Device& device);
/// Prints device_text.
std::ostream& operator<<(std::ostream& out, const Device& device);
/// "0" and "cuda:1" become indices; "cpu", "disk", "mps" stay.
/// Throws: UsageError for anything else, with the nearest name.
Device parse_device(const std::string& text);

/// As a user gives them, in any order.
using MaxMemory = std::vector<std::pair<Device, Bytes>>;

/// Limits in filling order: accelerators by index, mps, cpu, disk.
class MemoryLimits {
 public:
  std::vector<std::pair<Device, double>> entries = {};
  const double* find(const Device& device) const;
  double* find(const Device& device);
};

/// Returns the limits of `max_memory` in filling order.
/// Throws: UsageError naming a device that is not known, or a size that is no size.
MemoryLimits memory_limits(const MaxMemory& max_memory);

/// Returns the bytes that this process may still take: the smaller of MemAvailable and the control groups' limits, less
/// their use without inactive file pages. Version 1 or 2 and every level count. `proc` and `cgroup` replace /proc and
/// /sys/fs/cgroup in tests.
/// Throws: DataError if /proc/meminfo cannot be read.
int64_t available_memory_bytes(const std::filesystem::path& proc = "/proc",
                               const std::filesystem::path& cgroup = "/sys/fs/cgroup");

/// Returns what the tightest control group allows less its unreclaimable use; nothing without a limit.
std::optional<int64_t> cgroup_available_bytes(const std::filesystem::path& proc = "/proc",
                                              const std::filesystem::path& cgroup = "/sys/fs/cgroup");

struct BalanceOptions {
  std::vector<std::string> no_split_module_classes = {};
  SizeOptions sizes = {};
  bool low_zero = false;            ///< keeps accelerator 0 as free as possible ("balanced_low_0")
  bool limits_are_default = false;  ///< the user gave no limits: a single accelerator is filled to 90 %
};

/// Returns limits that spread the model evenly over the accelerators (Accelerate's get_balanced_memory).
/// Throws: UsageError for an unknown dtype.
MemoryLimits balanced_memory(const ModuleTree& tree, MemoryLimits limits, const BalanceOptions& options = {});

}  // namespace hasten::plan
