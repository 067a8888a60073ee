// The text of a failure; see failure_report.h.
#include "hasten/launch/workers/failure_report.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <map>

#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

constexpr const char* kFrame = "│ ";

// Further lines of a text are under its first.
std::string framed(const std::string& lines, const std::string& indent) {
  std::string result;
  for (const char c : lines) {
    result += c;
    if (c == '\n') result += kFrame + indent;
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

std::string hint_for(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    switch (WTERMSIG(wait_status)) {
      case SIGSEGV:
        return WCOREDUMP(wait_status)
                   ? "invalid memory access; the core file that was written shows where "
                     "(/proc/sys/kernel/core_pattern says where it is, coredumpctl finds it)"
                   : "invalid memory access; a debugger or a core file (ulimit -c unlimited) shows where";
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

std::string failure_report(const Outcome& outcome, const std::vector<WorkerPlace>& places, const FailureFacts& facts) {
  if (!outcome.root_cause) return "";
  const WorkerEnd& first = *outcome.root_cause;
  const WorkerPlace& place = places[static_cast<size_t>(first.local_rank)];
  std::string report = text("╭ hasten: rank ", place.rank, " of ", place.world_size,
                            " failed first: ", describe_end(first.status), "\n");
  const auto line = [&](const auto&... parts) { report += text(kFrame, parts..., "\n"); };
  line("local rank ", place.local_rank, facts.host.empty() ? "" : ", host " + facts.host, ", pid ", first.pid,
       facts.time.empty() ? "" : ", " + facts.time);
  if (outcome.attempt > 0) line("restarts: ", outcome.attempt, " of ", facts.max_restarts, " were made");
  if (facts.message) line("message: ", framed(*facts.message, "  "));
  if (!facts.hint.empty()) line("hint: ", facts.hint);
  if (!facts.log_file.empty()) line("log file: ", facts.log_file);
  if (!facts.error_tail.empty()) {
    const std::string tail = facts.error_tail.substr(0, facts.error_tail.size() - 1);
    line("its last lines on standard error:\n", kFrame, "  ", framed(tail, "  "));
  }
  const std::string others = outcome.others.empty() ? "" : "; the others: " + others_line(outcome.others, places);
  return report + text("╰ exit code ", outcome.exit_code, others, "\n");
}

}  // namespace hasten::launcher
