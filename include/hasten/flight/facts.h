// Facts: what a process finds out about its own threads, for the reason why it does not come.
//
// A process reads its own /proc only, so no right to trace is needed. The facts travel as text in the page.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::flight {

struct ThreadFacts {
  int thread = 0;
  std::string name = {};
  char state = 0;          ///< as the kernel has it: R S D T t
  std::string doing = {};  ///< "waits for a lock", "reads /data/a.idx"; "" if it computes

  /// Returns true if the host waits for its device, as the functions of the thread's stack show.
  bool waits_for_device() const;
};

/// A TCP connection with bytes that the other side has not acknowledged.
struct TcpFacts {
  std::string peer = {};  ///< "10.0.0.2:4711"
  int64_t unacknowledged_bytes = 0;
  int64_t retransmits = 0;
  double silent_s = 0;  ///< since the last acknowledgement
};

struct Facts {
  int pid = 0;
  std::vector<ThreadFacts> threads = {};
  std::vector<TcpFacts> connections = {};
  double cpu_share = -1;            ///< of a core over the last moment; -1: unknown
  double delayed_share = -1;        ///< of the time that it wanted a core and had none; -1: unknown
  int64_t throttled_periods = 0;    ///< of its cgroup, since the last look
  double memory_share = -1;         ///< of the time in which a task of its cgroup waited for memory; -1: unknown
  bool is_at_memory_limit = false;  ///< of its cgroup (memory.high)

  /// Returns the main thread; null if it is not among them.
  const ThreadFacts* main_thread() const;
};

/// Totals of an earlier look, for rates. Zeros: there was none.
struct FactsBefore {
  int64_t time_ns = 0, cpu_ns = 0, delayed_ns = 0, throttled = 0, memory_stall_us = -1;
};

/// Returns the facts of this process, and sets `before` for the next look.
Facts collect_facts(FactsBefore& before);

/// Returns what is known from outside about another process of the user: the state of its main thread, and what it gets
/// of the machine. For one whose watch thread has no time to answer. Its calls are unknown, so nothing is returned for
/// a process that sleeps.
std::optional<Facts> collect_facts_of(pid_t pid, FactsBefore& before);

/// Returns the words of a system call ("reads /data/a.idx"). `line` is that of /proc/self/task/N/syscall. "" if the
/// thread computes or the call is not one that waits. For calls of this process, since it follows pointers.
std::string describe_syscall(const std::string& line);

/// A line a fact; unknown lines are skipped by the reader.
std::string write_facts(const Facts& facts);
Facts read_facts(std::string_view text);

}  // namespace hasten::flight
