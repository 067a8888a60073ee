// See report.h.
#include "hasten/flight/report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::flight {
namespace {

constexpr double kNoProgressS = 10;

std::string seconds(double value) {
  return core::fixed_text(value, value < 10 ? 1 : 0) + " s";
}

std::string ranks_text(const std::vector<int>& ranks) {
  return text(ranks.size() == 1 ? "rank " : "ranks ", rank_list(ranks));
}

const RankState* find(const Snapshot& snapshot, int rank) {
  const auto found =
      std::find_if(snapshot.ranks.begin(), snapshot.ranks.end(), [&](const auto& it) { return it.rank == rank; });
  return found == snapshot.ranks.end() ? nullptr : &*found;
}

const CallState* waiting_call(const RankState& rank) {
  const CallState* longest = nullptr;
  for (const CallState& call : rank.calls) {
    if (!call.waits_s || call.ended) continue;
    if (longest == nullptr || *call.waits_s > *longest->waits_s) longest = &call;
  }
  return longest;
}

std::string headline(const Snapshot& snapshot, const Diagnosis& found) {
  const double step = median_step_s(snapshot);
  const std::string pace = step > 0 ? text(" (a step takes ", seconds(step), ")") : "";
  const std::string of = text(" of ", snapshot.world_size);
  const std::string who = ranks_text(found.culprits) + of;
  std::string what;
  switch (found.cause) {
    case Cause::kEnded:
      what = who + (found.culprits.size() == 1 ? " has ended" : " have ended");
      break;
    case Cause::kDiffer:
      what = text("the ranks make different calls; ", who, found.culprits.size() == 1 ? " differs" : " differ");
      break;
    case Cause::kMissing:
      what = who + (found.culprits.size() == 1 ? " is missing" : " are missing");
      break;
    case Cause::kCycle:
      what = who + " wait for each other";
      break;
    case Cause::kTransport:
      what = text("all ranks", of, " are in one call, and its data do not come");
      break;
    case Cause::kIdle:
      what = text(ranks_text(found.culprits), of, " wait for no other rank");
      break;
  }
  return text("╭ hasten: no progress for ", seconds(found.for_s), pace, ": ", what, '\n');
}

struct Row {
  std::vector<int> ranks = {};
  std::string where = {}, process = {};
  double since_s = 0;
};

std::vector<Row> rows_of(const Snapshot& snapshot) {
  std::vector<Row> rows;
  for (const RankState& rank : snapshot.ranks) {
    const CallState* const call = waiting_call(rank);
    const double since = call != nullptr ? *call->waits_s : rank.progress_s;
    const std::string where = place_of(rank), process = process_word(rank);
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
      return row.where == where && row.process == process && std::abs(row.since_s - since) < 1;
    });
    if (same == rows.end()) {
      rows.push_back({{rank.rank}, where, process, since});
    } else {
      same->ranks.push_back(rank.rank);
    }
  }
  return rows;
}

std::string padded(std::string words, size_t width) {
  words.resize(std::max(width, words.size()), ' ');
  return words;
}

std::string table(const Snapshot& snapshot) {
  const auto rows = rows_of(snapshot);
  size_t ranks = 5, where = 5;
  for (const Row& row : rows) {
    ranks = std::max(ranks, rank_list(row.ranks).size());
    where = std::max(where, row.where.size());
  }
  std::string lines = text("│ ", padded("rank", ranks), "  ", padded("where", where), "  since    process\n");
  for (const Row& row : rows) {
    lines += text("│ ", padded(rank_list(row.ranks), ranks), "  ", padded(row.where, where), "  ",
                  padded(seconds(row.since_s), 7), "  ", row.process, '\n');
  }
  return lines;
}

// " on node1" in a run on several hosts, since process numbers are those of one.
std::string host_text(const Snapshot& snapshot, const RankState& rank) {
  const bool is_alone = std::all_of(snapshot.ranks.begin(), snapshot.ranks.end(),
                                    [&](const RankState& other) { return other.node_rank == rank.node_rank; });
  return is_alone || rank.host.empty() ? "" : " on " + rank.host;
}

std::string reason(const Snapshot& snapshot, const Diagnosis& found) {
  std::vector<std::string> sentences;
  for (const int culprit : found.culprits) {
    const RankState* const rank = find(snapshot, culprit);
    const std::string words = rank == nullptr ? "" : why(*rank);
    if (!words.empty() && found.cause != Cause::kDiffer && found.cause != Cause::kCycle) {
      sentences.push_back(text("rank ", culprit, host_text(snapshot, *rank), ' ', words, '.'));
    }
    if (sentences.size() == 3) break;
  }
  const std::string timeout = seconds(found.group.timeout_s);
  if (found.cause == Cause::kMissing && found.culprits.size() == 1) {
    const RankState* const rank = find(snapshot, found.culprits[0]);
    const bool left = rank != nullptr && (rank->life == Life::kEnded || rank->state == PageState::kLeft);
    if (left) sentences.push_back("Did its loop end before the others' (join_uneven_inputs)?");
    sentences.push_back(text("The others wait for it until their timeout (", timeout, ")."));
  } else if (found.cause == Cause::kDiffer) {
    sentences.push_back("Every rank of a group must make the same calls in the same order.");
  } else if (found.cause == Cause::kCycle) {
    sentences.push_back(text("None can go on; it ends at the timeout (", timeout, ")."));
  }
  return sentences.empty() ? text("It ends at the timeout (", timeout, ").") : join(sentences, " ");
}

}  // namespace

std::string process_word(const RankState& rank) {
  if (rank.life == Life::kEnded) return "ended";
  if (rank.life == Life::kStopped) return "stopped";
  if (rank.life == Life::kTraced) return "traced";
  if (rank.life == Life::kSilent) return "out of reach";
  if (!rank.facts || rank.facts->main_thread() == nullptr) return "";
  const ThreadFacts& main = *rank.facts->main_thread();
  if (main.waits_for_device()) return main.doing;
  if (main.state == 'R') return "computing";
  if (main.state == 'D') return "in the kernel (D)";
  return main.doing.empty() || waiting_call(rank) != nullptr ? "sleeping" : main.doing;
}

std::string run_state(const Snapshot& snapshot) {
  std::vector<int> left;
  bool begun = false;
  for (const RankState& rank : snapshot.ranks) {
    begun = begun || rank.state != PageState::kAnnounced;
    const std::string subject = text("rank ", rank.rank, ' ');
    if (rank.state == PageState::kLeft) {
      left.push_back(rank.rank);
    } else if (rank.life == Life::kEnded) {
      return subject + (rank.state == PageState::kFailed ? "has failed" : "was killed, or called exit");
    } else if (rank.life != Life::kRunning) {
      return subject + process_word(rank);
    }
  }
  if (!begun) return "no hasten inside";
  if (left.size() == snapshot.ranks.size()) return "ending";
  for (const RankState& rank : snapshot.ranks) {
    if (rank.state == PageState::kLeft || rank.progress_s <= kNoProgressS) continue;
    return text("no progress of rank ", rank.rank, " for ", seconds(rank.progress_s));
  }
  return left.empty() ? "running" : text("ending; ", ranks_text(left), left.size() == 1 ? " has left" : " have left");
}

std::string place_of(const RankState& rank) {
  if (const CallState* const call = waiting_call(rank)) return "waits in " + short_call(*call);
  std::string words = rank.life == Life::kEnded ? "ended" : rank.phase.empty() ? "its own code" : rank.phase;
  if (rank.state == PageState::kLeft) words = "left the run";
  if (rank.state == PageState::kAnnounced && rank.life != Life::kEnded) words = "before its Process";
  if (!rank.calls.empty()) words += "; its last was " + short_call(rank.calls.back());
  return words;
}

std::string hang_report(const Snapshot& snapshot, const Diagnosis& found) {
  std::string box = headline(snapshot, found);
  const auto line = [&](const std::string& words) { box += "│ " + words + "\n"; };
  if (found.cause != Cause::kIdle) {
    const RankState* const first = found.waiting.empty() ? nullptr : find(snapshot, found.waiting[0]);
    std::string place;
    if (first != nullptr && (first->step > 0 || first->epoch > 0)) {
      place = text(", step ", first->step + 1, ", epoch ", first->epoch);
    }
    line(describe_call(found.call, &found.group) + place);
  }
  box += table(snapshot);
  for (const std::string& note : found.notes) line(note);
  size_t shown = 0;
  for (const int culprit : found.culprits) {
    const RankState* const rank = find(snapshot, culprit);
    if (rank == nullptr || rank->stack.empty() || ++shown > 4) continue;
    line(text("rank ", culprit, ", main thread: ", rank->stack));
  }
  return box + "╰ " + reason(snapshot, found) + "\n";
}

std::string hang_line(const Snapshot& snapshot, const Diagnosis& found) {
  std::vector<std::string> reasons;
  for (const int culprit : found.culprits) {
    const RankState* const rank = find(snapshot, culprit);
    if (rank == nullptr || reasons.size() == 2) continue;
    const std::string subject = found.culprits.size() == 1 ? "it" : text("rank ", culprit);
    const std::string where = rank->stack.substr(0, rank->stack.find(" < "));
    const std::string words = why(*rank);
    if (!words.empty()) reasons.push_back(text(subject, ' ', words, where.empty() ? "" : text(": ", where)));
  }
  if (found.cause == Cause::kTransport) {
    return text("hasten: ", ranks_text(found.waiting), " are in ", describe_call(found.call, &found.group), " for ",
                seconds(found.for_s), ", which all have called\n");
  }
  return text("hasten: ", ranks_text(found.waiting), found.waiting.size() == 1 ? " waits for " : " wait for ",
              ranks_text(found.culprits), " in ", short_call(found.call), " of '", found.group.name, "' for ",
              seconds(found.for_s), reasons.empty() ? "" : "; ", join(reasons, "; "), '\n');
}

}  // namespace hasten::flight
