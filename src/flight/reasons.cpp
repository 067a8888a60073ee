// Words for calls and ranks; see diagnose.h and parting.h.
#include <algorithm>

#include "flight/parting.h"
#include "hasten/core/text.h"
#include "hasten/flight/diagnose.h"

namespace hasten::flight {
namespace {

constexpr double kStarved = 0.2, kBusy = 0.5;  // of a core
constexpr double kMostOfTheTime = 0.5;

std::string sizes_text(const CallState& call) {
  if (call.rule == SizesRule::kNone || (call.dims == 0 && call.label.find(" of ") == std::string::npos)) return "";
  return text(" [", join(call.sizes), call.dims > static_cast<int>(call.sizes.size()) ? ", …]" : "]");
}

// "all_reduce(sum) of float32" -> "all_reduce", "sum of float32".
std::pair<std::string, std::string> split_label(const std::string& label) {
  const size_t end = std::min(label.find_first_of("( "), label.size());
  std::string rest = label.substr(end);
  std::erase_if(rest, [](char c) { return c == '(' || c == ')'; });
  return {label.substr(0, end), rest.starts_with(" of ") ? rest.substr(4) : rest};
}

std::string of_the_kernel(const ThreadFacts& thread) {
  if (thread.state != 'D') return thread.doing;
  return text("is in a call of the kernel that cannot be interrupted (D)",
              thread.doing.empty() ? "" : ": it " + thread.doing);
}

// A thread other than the main one that reads or opens a file.
const ThreadFacts* reader_of(const Facts& facts) {
  for (const ThreadFacts& thread : facts.threads) {
    const bool reads = thread.doing.starts_with("reads ") || thread.doing.starts_with("opens ");
    if (thread.thread != facts.pid && reads && thread.doing.find("a pipe") == std::string::npos) return &thread;
  }
  for (const ThreadFacts& thread : facts.threads) {
    if (thread.thread != facts.pid && thread.doing.starts_with("reads ")) return &thread;
  }
  return nullptr;
}

std::string percent(double share) {
  return text(static_cast<int>(share * 100 + 0.5), " %");
}

// Says how the machine keeps the rank short of cores or memory, as a predicate; "" if it does not.
std::string shortage(const Facts& facts) {
  const ThreadFacts* const main = facts.main_thread();
  if (main == nullptr) return "";
  const bool is_held = main->state == 'D' || (main->state == 'R' && facts.cpu_share < kBusy);
  if (is_held && main->doing.empty() && facts.memory_share >= kMostOfTheTime) {
    return facts.is_at_memory_limit ? "is throttled by its cgroup: its memory is at the limit (memory.high)"
                                    : "waits for memory: the machine swaps, or reads pages again that it has dropped";
  }
  const bool starved = main->state == 'R' && facts.cpu_share >= 0 && facts.cpu_share < kStarved;
  if (starved && facts.throttled_periods > 0) {
    return text("is throttled by its cgroup: it gets ", percent(facts.cpu_share), " of a core");
  }
  if (starved && facts.delayed_share > 0.5) {
    return text("gets ", percent(facts.cpu_share), " of a core; other processes have the rest");
  }
  return "";
}

std::string why_by_facts(const RankState& rank) {
  const Facts& facts = *rank.facts;
  const ThreadFacts* const main = facts.main_thread();
  if (main == nullptr) return "";
  if (main->waits_for_device()) return main->doing;
  if (std::string words = shortage(facts); !words.empty()) return words;
  const ThreadFacts* const reader = reader_of(facts);
  if (rank.phase == "data" && main->state == 'S' && main->doing == "sleeps in a lock" && reader != nullptr) {
    return "waits for data; a worker thread " + of_the_kernel(*reader);
  }
  // libtorch's threads and the program's own compute while the main thread waits for them.
  if (main->state == 'S' && facts.cpu_share >= kBusy) return "computes in its other threads";
  if (main->state == 'D' || !main->doing.empty()) return of_the_kernel(*main);
  return "computes in " + (rank.phase.empty() ? "user code" : rank.phase);
}

}  // namespace

std::string signature(const CallState& call) {
  std::vector<int64_t> sizes = call.sizes;
  if (call.rule == SizesRule::kFirstMayDiffer && !sizes.empty()) sizes[0] = 0;
  if (call.rule == SizesRule::kNone) sizes.clear();
  const int dims = call.rule == SizesRule::kNone ? 0 : call.dims;
  return text(call.label, '|', call.root, '|', dims, '|', join(sizes));
}

std::string full_label(const CallState& call) {
  return text(call.label, sizes_text(call), call.root >= 0 ? text(", root ", call.root) : "");
}

std::optional<std::string> parting(const RankState& culprit, const RankState& other, uint64_t group) {
  for (const CallState& mine : culprit.calls) {
    if (mine.group != group || mine.kind != CallKind::kCollective) continue;
    for (const CallState& theirs : other.calls) {
      if (theirs.group != group || theirs.kind != CallKind::kCollective || theirs.number != mine.number) continue;
      if (theirs.site == mine.site || signature(theirs) != signature(mine)) continue;
      return text("the calls part at number ", mine.number, ": rank ", culprit.rank, " at ", mine.site, ", rank ",
                  other.rank, " at ", theirs.site);
    }
  }
  return std::nullopt;
}

std::string short_call(const CallState& call) {
  const std::string name = split_label(call.label).first;
  if (call.kind == CallKind::kSend) return text(name, ' ', call.number, " to ", call.peer, " (tag ", call.tag, ')');
  if (call.kind == CallKind::kReceive)
    return text(name, ' ', call.number, " from ", call.peer, " (tag ", call.tag, ')');
  if (call.kind == CallKind::kMeeting) return "the meeting";
  return text(name, ' ', call.number);
}

std::string describe_call(const CallState& call, const GroupState* group) {
  const std::string rest = split_label(call.label).second;
  const std::string of = group == nullptr ? "" : text(" of '", group->name, "'");
  const std::string what = rest.empty() ? "" : text(": ", rest, sizes_text(call));
  const std::string root = call.root >= 0 ? text(", root ", call.root) : "";
  std::string purpose;
  if (!call.purpose.empty()) {
    purpose = text(" for ", call.purpose, call.purpose_number >= 0 ? text(' ', call.purpose_number) : "");
  }
  return text(short_call(call), of, what, root, purpose, call.site.empty() ? "" : " at " + call.site);
}

std::string why(const RankState& rank) {
  if (rank.life == Life::kEnded) {
    if (rank.state == PageState::kLeft) return "has ended in order";
    if (rank.state == PageState::kFailed) return "has failed with an exception";
    if (rank.state == PageState::kAnnounced) return "has ended before it made a Process";
    return "has ended without a word: it was killed, or called exit";
  }
  if (rank.life == Life::kStopped) return text("is stopped; kill -CONT ", rank.pid, " lets it go on");
  if (rank.life == Life::kTraced) return "is held by " + (rank.tracer.empty() ? "a debugger" : rank.tracer);
  if (rank.life == Life::kSilent) {
    return "is out of reach: its host tells nothing any more. Look at the host and at the network between";
  }
  if (rank.state == PageState::kLeft) return "has left the run: its Process has ended, the program goes on";
  if (rank.state == PageState::kAnnounced) return "has started its program, which has made no Process yet";
  return rank.facts ? why_by_facts(rank) : "";
}

bool is_kept_short(const RankState& rank) {
  return rank.life == Life::kRunning && rank.facts && !shortage(*rank.facts).empty();
}

bool computes(const RankState& rank) {
  if (rank.life != Life::kRunning) return false;
  if (!rank.facts) return true;
  const ThreadFacts* const main = rank.facts->main_thread();
  if (main != nullptr && main->waits_for_device()) return true;  // kernels may run for long
  return why_by_facts(rank).starts_with("computes in ");
}

}  // namespace hasten::flight
