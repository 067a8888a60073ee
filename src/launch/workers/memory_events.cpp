// See memory_events.h.
#include "launch/workers/memory_events.h"

#include <fstream>
#include <iomanip>
#include <sstream>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

// The number behind `name` in a file of "name number" lines.
std::optional<int64_t> counter(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  int64_t value = 0;
  for (std::string word; file >> word >> value;) {
    if (word == name) return value;
  }
  return std::nullopt;
}

// "max" (version 2), or a number too big to be one (version 1), is no limit.
std::optional<int64_t> limit(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = 0;
  if (!(file >> bytes) || bytes > (int64_t{1} << 60)) return std::nullopt;
  return bytes;
}

// This process's folder in the hierarchy of version 2 ("0::") or of version 1's memory controller. "" if there is none.
// Lines are like "4:memory:/user.slice/job_7".
std::string cgroup_path(const std::string& root, bool version_2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::string start = line.substr(0, line.find(':', line.find(':') + 1) + 1);
    const bool found = version_2 ? start == "0::" : start.ends_with(":memory:");
    if (found) return line.substr(start.size());
  }
  return "";
}

// In a container the folder's name may be that outside, while only the folder itself is mounted.
void read_cgroup(const std::string& folder, const std::string& path, const char* events, const char* max,
                 MemoryEvents& result) {
  for (const std::string& place : {folder + path, folder}) {
    if (result.cgroup_kills) return;
    result.cgroup_kills = counter(place + "/" + events, "oom_kill");
    if (result.cgroup_kills) result.cgroup_limit_bytes = limit(place + "/" + max);
  }
}

int64_t increase(const std::optional<int64_t>& before, const std::optional<int64_t>& after) {
  return before && after ? *after - *before : 0;
}

std::string gibibytes(int64_t bytes) {
  return core::fixed_text(static_cast<double>(bytes) / (1 << 30), 2) + " GiB";
}

}  // namespace

MemoryEvents read_memory_events(const std::string& root) {
  MemoryEvents result;
  const std::string folder = root + "/sys/fs/cgroup";
  read_cgroup(folder, cgroup_path(root, true), "memory.events", "memory.max", result);
  read_cgroup(folder + "/memory", cgroup_path(root, false), "memory.oom_control", "memory.limit_in_bytes", result);
  result.machine_kills = counter(root + "/proc/vmstat", "oom_kill");
  return result;
}

std::string explain_kill(const MemoryEvents& before, const MemoryEvents& after) {
  if (const int64_t kills = increase(before.cgroup_kills, after.cgroup_kills); kills > 0) {
    const std::string limit = after.cgroup_limit_bytes ? text(" of ", gibibytes(*after.cgroup_limit_bytes)) : "";
    return text("the cgroup's memory limit", limit,
                " was reached: the out-of-memory killer ended processes in it during this run (", kills, ")");
  }
  if (const int64_t kills = increase(before.machine_kills, after.machine_kills); kills > 0) {
    return text("most likely the machine ran out of memory: the kernel ended processes on it during this run (", kills,
                "; dmesg names them)");
  }
  if (after.cgroup_kills || after.machine_kills) {
    return "the out-of-memory killer was not at work here, so someone sent it: a scheduler at its limit, or "
           "a "
           "kill -9 by hand";
  }
  return "most often a memory limit or the kernel's out-of-memory killer (dmesg, memory.events of the "
         "cgroup), else a kill -9 by hand";
}

}  // namespace hasten::launcher
