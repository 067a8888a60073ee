// See root_cause.h.
#include "launch/workers/root_cause.h"

#include <sys/wait.h>

#include <algorithm>
#include <set>
#include <utility>

#include "hasten/core/number.h"

namespace hasten::launcher {

std::optional<int> rank_that_failed(const std::string& message) {
  constexpr std::string_view kRank = "rank ", kFailed = " failed: ";
  for (size_t at = message.find(kRank); at != std::string::npos; at = message.find(kRank, at + 1)) {
    const size_t begin = at + kRank.size(), end = message.find_first_not_of("0123456789", begin);
    if (end == std::string::npos || end == begin || message.compare(end, kFailed.size(), kFailed) != 0) continue;
    return core::whole_number<int>(message.substr(begin, end - begin));
  }
  return std::nullopt;
}

namespace {

using Ends = std::vector<WorkerEnd>;

void make_cause(Outcome& outcome, Ends::iterator end) {
  std::swap(*outcome.root_cause, *end);
  if (WIFEXITED(outcome.root_cause->status)) outcome.exit_code = exit_code_of(outcome.root_cause->status);
}

// Returns the first of the workers that left the run before `time` and failed afterwards.
Ends::iterator first_that_left(Ends& ends, TimePoint time) {
  auto first = ends.end();
  for (auto end = ends.begin(); end != ends.end(); ++end) {
    const bool failed = WIFEXITED(end->status) && end->status != 0;
    if (!failed || !end->left || *end->left >= time) continue;
    if (first == ends.end() || *end->left < *first->left) first = end;
  }
  return first;
}

}  // namespace

Outcome with_cause(Outcome outcome, const std::vector<WorkerPlace>& places, const MessageOf& message_of) {
  std::set<int> seen;
  while (outcome.root_cause && seen.insert(outcome.root_cause->local_rank).second) {
    const auto message = message_of(outcome.root_cause->local_rank);
    const auto rank = message ? rank_that_failed(*message) : std::nullopt;
    if (!rank) {
      const WorkerEnd& cause = *outcome.root_cause;
      const bool waited = message && message->find("[comm]") != std::string::npos;
      if (!waited && (message || !cause.left)) return outcome;
      const auto left = first_that_left(outcome.others, cause.left.value_or(cause.time));
      if (left == outcome.others.end()) return outcome;
      make_cause(outcome, left);
      continue;
    }
    const int failed = rank.value_or(0);  // g++ 12 takes *rank for uninitialised
    const auto cause = std::find_if(outcome.others.begin(), outcome.others.end(), [&](const WorkerEnd& end) {
      return places[static_cast<size_t>(end.local_rank)].rank == failed && end.status != 0;
    });
    if (cause == outcome.others.end()) return outcome;
    make_cause(outcome, cause);
  }
  return outcome;
}

std::vector<WorkerEnd> workers_that_left(const Outcome& outcome) {
  std::vector<WorkerEnd> early;
  for (const WorkerEnd& end : outcome.others) {
    if (end.status == 0 && outcome.root_cause && end.left.value_or(end.time) <= outcome.root_cause->time)
      early.push_back(end);
  }
  std::sort(early.begin(), early.end(), [](const auto& a, const auto& b) { return a.local_rank < b.local_rank; });
  return early;
}

}  // namespace hasten::launcher
