// CPUs that this process may use: its mask, and the quota of its control group.
//
// A container with "2 CPUs" on a machine of 64 sees all 64, and is stopped for most of each period if it uses them. The
// quota is read from /sys/fs/cgroup, of versions 1 and 2, of the group and of all above it.
#pragma once

#include <optional>
#include <string>

namespace hasten {

/// Returns quota / period rounded up, the smallest of the process's control group and those above it; at least 1. Nothing
/// without a quota. `root` is where /proc and /sys are looked for (tests).
std::optional<int> cpu_quota(const std::string& root = "");

/// Returns the number of CPUs of the process's mask, at most its quota; at least 1.
int usable_cpus(const std::string& root = "");

}  // namespace hasten
