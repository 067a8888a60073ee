// The text of a failure; see failure_report.h.
#include "launch/workers/failure_report.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "hasten/core/text.h"
#include "hasten/launch/base/signals.h"
#include "launch/workers/root_cause.h"

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

std::set<std::string> lines_of(const std::string& words) {
  std::set<std::string> lines;
  std::istringstream stream(words);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

// The line without what a worker puts before its message: "hasten: rank 1/2: ".
std::string without_head(std::string line) {
  if (line.starts_with("hasten: ")) line.erase(0, 8);
  const size_t end = line.find_first_not_of("0123456789/", 5);
  if (line.starts_with("rank ") && end != std::string::npos && line.compare(end, 2, ": ") == 0) line.erase(0, end + 2);
  return line;
}

// The last lines that the message has not.
std::string beside_message(const std::string& tail, const std::optional<std::string>& message) {
  if (!message) return tail;
  const std::set<std::string> shown_lines = lines_of(*message);
  std::string rest;
  std::istringstream stream(tail);
  for (std::string line; std::getline(stream, line);) {
    if (!shown_lines.contains(line) && !shown_lines.contains(without_head(line))) rest += line + "\n";
  }
  return rest;
}

// The reason that the message of a rank that waited for others lacks.
std::string of_ranks_that_left(const std::vector<EarlyEnd>& ends) {
  std::vector<std::string> ranks;
  for (const auto& [rank, step] : ends)
    ranks.push_back(text("rank ", rank, step > 0 ? text(" after step ", step) : ""));
  return text(join(ranks), " ended with exit code 0 while the others went on; give all ranks as many batches, or use ",
              "join_uneven_inputs");
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

// A worker that others name as their cause may still be ending when the launcher's signal comes.
std::string first_end(const Outcome& outcome) {
  const int status = outcome.root_cause->status;
  if (!WIFSIGNALED(status) || exit_code_of(status) == outcome.exit_code) return describe_end(status);
  return text("an uncaught exception (it was still ending when the launcher sent ", signal_name(WTERMSIG(status)), ')');
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

std::string failure_report(const Outcome& outcome, const std::vector<WorkerPlace>& places, const FailureFacts& facts,
                           const RunSettings& run) {
  if (!outcome.root_cause) return "";
  const WorkerEnd& first = *outcome.root_cause;
  const WorkerPlace& place = places[static_cast<size_t>(first.local_rank)];
  std::string report =
      text("╭ hasten: rank ", place.rank, " of ", place.world_size, " failed first: ", first_end(outcome), "\n");
  const std::string tail_lines = beside_message(facts.error_tail, facts.message);
  const auto rank = facts.message ? rank_that_failed(*facts.message) : std::nullopt;
  const auto line = [&](const auto&... parts) { report += text(kFrame, parts..., "\n"); };
  line("local rank ", place.local_rank, facts.host.empty() ? "" : ", host " + facts.host, ", pid ", first.pid,
       facts.time.empty() ? "" : ", " + facts.time);
  if (outcome.attempt > 0) line("restarts: ", outcome.attempt, " of ", run.max_restarts, " were made");
  if (facts.message) line("message: ", framed(*facts.message, "  "));
  if (rank && *rank != place.rank)
    line("this follows from the failure of rank ", *rank, ", which is on another machine");
  const bool waited = facts.message && facts.message->find("[comm]") != std::string::npos;
  if (waited && !rank && !facts.left_early.empty()) line("cause: ", of_ranks_that_left(facts.left_early));
  if (!facts.hint.empty()) line("hint: ", facts.hint);
  if (!facts.where.empty()) line("it was in: ", facts.where);
  if (!facts.log_file.empty()) line("log file: ", facts.log_file);
  if (!tail_lines.empty()) {
    const std::string tail = tail_lines.substr(0, tail_lines.size() - 1);
    line("its last lines on standard error:\n", kFrame, "  ", framed(tail, "  "));
  }
  const std::string others = outcome.others.empty() ? "" : "; the others: " + others_line(outcome.others, places);
  return report + text("╰ exit code ", outcome.exit_code, others, "\n");
}

}  // namespace hasten::launcher
