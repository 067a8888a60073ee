// Limits of a process's cgroup that hold it: its quota of cores, its memory. For both versions of cgroups.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hasten::flight {

struct CgroupTotals {
  int64_t throttled_periods = 0;  ///< in which the quota of cores was used up
  int64_t memory_stall_us = -1;   ///< in which a task of it waited for memory; -1: the kernel does not count it
  bool is_at_memory_limit = false;
};

/// Reads the cgroup of a process. `groups` is the text of its /proc/PID/cgroup. The hierarchies lie in `root`. A
/// process in a container may see its cgroup at their top.
CgroupTotals read_cgroup(std::string_view groups, const std::string& root = "/sys/fs/cgroup");

/// The microseconds of "some" in a text of /proc/pressure/memory; -1 without.
int64_t stall_us(std::string_view pressure);

}  // namespace hasten::flight
