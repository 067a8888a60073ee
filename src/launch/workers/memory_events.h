// Whether the kernel's out-of-memory killer was at work, from its own counters: of the cgroup that the run is
// in, and of the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hasten::launcher {

/// The counters at one moment; nothing if they cannot be read.
struct MemoryEvents {
  std::optional<int64_t> cgroup_kills;
  std::optional<int64_t> cgroup_limit_bytes;  ///< none if there is no limit
  std::optional<int64_t> machine_kills;
};

/// `root` is a prefix of /proc and /sys.
MemoryEvents read_memory_events(const std::string& root = "");

/// Returns the most likely cause of a SIGKILL between the two moments.
std::string explain_kill(const MemoryEvents& before, const MemoryEvents& after);

}  // namespace hasten::launcher
