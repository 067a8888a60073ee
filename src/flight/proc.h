// Reading /proc: how a process stands, and small files as text.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::flight {

/// The start of a file under /proc or /sys; "" if it cannot be read.
std::string read_text(const std::string& path, size_t most = 64 << 10);
/// The target of a symbolic link; "" if it cannot be read.
std::string read_link(const std::string& path);
/// Names in a folder that are numbers.
std::vector<int> numbers_in(const std::string& folder);
std::vector<std::string_view> lines_of(std::string_view text);
/// The number behind `name` in a text of lines "name number"; -1 without it.
int64_t number_after(std::string_view text, std::string_view name);

struct ProcessStat {
  char state = 0;  ///< R S D T t Z X as the kernel has it; 0: there is no such process
  uint64_t start_ticks = 0;
  int64_t cpu_ticks = 0;  ///< user and system
  std::string name = {};
};

/// Reads the facts of a process, or of a thread (`folder` is "/proc/1/task/2").
ProcessStat read_stat(const std::string& folder);
ProcessStat read_process(pid_t pid);
/// The process that traces this one; 0: none.
pid_t tracer_of(pid_t pid);

/// The file name of the process's program, or of the script that an interpreter runs.
std::string program_name(pid_t pid);
std::string host_name();

}  // namespace hasten::flight
