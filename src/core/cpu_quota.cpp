// Control groups' CPU bandwidth; see cpu_quota.h.
#include "hasten/core/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "hasten/core/number.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> rounded_up(std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<int>(std::clamp<int64_t>((*quota + *period - 1) / *period, 1, 1 << 20));
}

// "150000 100000", or "max 100000" without a quota.
std::optional<int> of_version_2(const fs::path& group) {
  const std::string line = first_line(group / "cpu.max");
  const size_t blank = line.find(' ');
  if (blank == std::string::npos) return std::nullopt;
  return rounded_up(core::whole_number<int64_t>(line.substr(0, blank)),
                    core::whole_number<int64_t>(line.substr(blank + 1)));
}

// A quota of -1 is none.
std::optional<int> of_version_1(const fs::path& group) {
  return rounded_up(core::whole_number<int64_t>(first_line(group / "cpu.cfs_quota_us")),
                    core::whole_number<int64_t>(first_line(group / "cpu.cfs_period_us")));
}

// In a container the group's name may be that outside, while only the group itself is mounted: the mount's own folder
// counts in each case.
std::optional<int> smallest(const fs::path& mount, fs::path group, std::optional<int> (*quota)(const fs::path&)) {
  std::optional<int> least;
  for (group = group.relative_path();; group = group.parent_path()) {
    if (const auto one = quota(mount / group)) least = std::min(least.value_or(*one), *one);
    if (group.empty()) return least;
  }
}

bool names_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

std::optional<int> cpu_quota(const std::string& root) {
  const fs::path mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  std::optional<int> least;
  const auto take = [&](std::optional<int> one) {
    if (one) least = std::min(least.value_or(*one), *one);
  };
  // Lines are "4:cpu,cpuacct:/job_7", or "0::/job_7" of version 2.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) take(smallest(mount, group, of_version_2));
    if (!names_cpu(controllers)) continue;
    for (const char* name : {"cpu", "cpu,cpuacct", "cpuacct,cpu"}) take(smallest(mount / name, group, of_version_1));
  }
  return least;
}

int usable_cpus(const std::string& root) {
  cpu_set_t mask;
  const int of_mask = sched_getaffinity(0, sizeof mask, &mask) == 0 ? std::max(1, CPU_COUNT(&mask)) : 1;
  return std::min(of_mask, cpu_quota(root).value_or(of_mask));
}

}  // namespace hasten
