// The text of a failure; see failure_report.h.
#include "hasten/launch/failure_report.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <map>

#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? text("SIG", name) : text("signal ", signal);
}

// Further lines of a message stand under its first.
std::string indented(const std::string& message) {
  std::string result;
  for (const char c : message) {
    result += c;
    if (c == '\n') result += "    ";
  }
  return result;
}

// "SIGTERM: ranks 0, 2" for each way in which the others ended, the most telling (a failure) as it comes.
std::string others_line(const std::vector<WorkerEnd>& others, const std::vector<WorkerPlace>& places) {
  std::map<std::string, std::vector<int>> ranks_by_end;
  for (const WorkerEnd& end : others) {
    ranks_by_end[describe_end(end.status)].push_back(places[static_cast<size_t>(end.local_rank)].rank);
  }
  std::vector<std::string> groups;
  for (const auto& [end, ranks] : ranks_by_end) {
    groups.push_back(text(end, " (rank", ranks.size() == 1 ? " " : "s ", join(ranks), ")"));
  }
  return join(groups);
}

}  // namespace

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) return text("killed by ", signal_name(WTERMSIG(wait_status)));
  return text("exit code ", WEXITSTATUS(wait_status));
}

std::string hint_for(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    switch (WTERMSIG(wait_status)) {
      case SIGKILL:
        return "most often a memory limit or the kernel's out-of-memory killer (dmesg, memory.events of the "
               "cgroup), "
               "else a kill -9 by hand";
      case SIGSEGV:
        return "invalid memory access; a debugger or a core file (ulimit -c unlimited) shows where";
      case SIGBUS:
        return "most often a full /dev/shm, or a mapped file that was cut short";
      case SIGABRT:
        return "an uncaught exception or a failed assertion; its words stand in the output above";
      case SIGILL:
        return "an instruction this CPU does not have; was the program built on another machine?";
      default:
        return "";
    }
  }
  switch (WEXITSTATUS(wait_status)) {
    case 126:
      return "found, but not executable";
    case 127:
      return "a program, an interpreter or a shared library was not found";
    default:
      return "";
  }
}

std::string failure_report(const Outcome& outcome, const std::vector<WorkerPlace>& places,
                           const std::optional<std::string>& message) {
  if (!outcome.root_cause) return "";
  const WorkerEnd& first = *outcome.root_cause;
  const WorkerPlace& place = places[static_cast<size_t>(first.local_rank)];
  std::string report = text("hasten: rank ", place.rank, " of ", place.world_size,
                            " failed first: ", describe_end(first.status), " (local rank ", place.local_rank,
                            ", pid ", first.pid, ")\n");
  if (message) report += text("  message: ", indented(*message), "\n");
  const std::string hint = hint_for(first.status);
  if (!hint.empty()) report += text("  hint: ", hint, "\n");
  if (!outcome.others.empty()) report += text("  the others: ", others_line(outcome.others, places), "\n");
  return report;
}

}  // namespace hasten::launcher
