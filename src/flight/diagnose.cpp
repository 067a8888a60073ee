// The search for the rank that keeps the others waiting; see diagnose.h. Its words are in reasons.cpp.
#include "hasten/flight/diagnose.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "flight/parting.h"
#include "hasten/core/text.h"

namespace hasten::flight {
namespace {

constexpr double kLeastLimit = 5, kFirstLimit = 30, kStepsOfLimit = 10;

/// A call in which a rank waits, and the ranks that have not made it.
struct Wait {
  const RankState* rank = nullptr;
  const CallState* call = nullptr;
  const GroupState* group = nullptr;
  std::vector<const RankState*> missing = {};  ///< of those that are known
  std::vector<const RankState*> present = {};  ///< the other members, but for the rank itself
  bool has_unknown = false;                    ///< a member has no page, so it has not come
};

const GroupState* group_of(const RankState& rank, uint64_t key) {
  const auto found =
      std::find_if(rank.groups.begin(), rank.groups.end(), [&](const GroupState& group) { return group.key == key; });
  return found == rank.groups.end() ? nullptr : &*found;
}

const CallState* call_of(const RankState& rank, uint64_t group, uint64_t number) {
  for (const CallState& call : rank.calls) {
    const bool numbered = call.kind == CallKind::kCollective || call.kind == CallKind::kMeeting;
    if (numbered && call.group == group && call.number == number) return &call;
  }
  return nullptr;
}

bool is_message(const CallState& call) {
  return call.kind == CallKind::kSend || call.kind == CallKind::kReceive;
}

class Search {
 public:
  Search(const Snapshot& snapshot, const HangLimits& limits)
      : snapshot_(snapshot), limits_(limits), limit_s_(hang_after_s(snapshot, limits)) {
    for (const RankState& rank : snapshot.ranks) collect(rank);
  }

  std::optional<Diagnosis> run() const {
    if (auto found = ended()) return found;
    if (auto found = differing()) return found;
    if (auto found = missing()) return found;
    if (auto found = transport()) return found;
    return idle();
  }

 private:
  void collect(const RankState& rank) {
    if (rank.life == Life::kEnded || rank.life == Life::kSilent) return;
    for (const CallState& call : rank.calls) {
      if (!call.waits_s || call.ended) continue;
      const GroupState* const group = group_of(rank, call.group);
      if (group == nullptr) continue;
      Wait wait{&rank, &call, group};
      for (int member = 0; member < group->size; ++member) {
        if (member == group->rank || (is_message(call) && member != call.peer)) continue;
        const RankState* const other = member_of(*group, member);
        if (other == nullptr) {
          wait.has_unknown = true;
        } else if (has_made(*other, *group, call)) {
          wait.present.push_back(other);
        } else {
          wait.missing.push_back(other);
        }
      }
      waits_.push_back(std::move(wait));
    }
  }

  // A group of all ranks has their numbers, also before a rank has come to it.
  const RankState* member_of(const GroupState& group, int member) const {
    for (const RankState& rank : snapshot_.ranks) {
      const GroupState* const own = group_of(rank, group.key);
      if (own != nullptr && own->rank == member) return &rank;
    }
    if (group.size != snapshot_.world_size) return nullptr;
    for (const RankState& rank : snapshot_.ranks) {
      if (rank.rank == member && group_of(rank, group.key) == nullptr) return &rank;
    }
    return nullptr;
  }

  static bool has_made(const RankState& rank, const GroupState& group, const CallState& call) {
    const GroupState* const own = group_of(rank, group.key);
    if (own == nullptr) return false;
    if (!is_message(call)) return own->calls >= call.number;
    const CallKind other = call.kind == CallKind::kSend ? CallKind::kReceive : CallKind::kSend;
    return std::any_of(rank.calls.begin(), rank.calls.end(), [&](const CallState& one) {
      return one.kind == other && one.group == group.key && one.peer == group.rank && one.tag == call.tag &&
             one.number >= call.number;
    });
  }

  std::vector<const Wait*> waits_of(const RankState& rank) const {
    std::vector<const Wait*> found;
    for (const Wait& wait : waits_) {
      if (wait.rank == &rank) found.push_back(&wait);
    }
    return found;
  }

  static void add(std::vector<int>& ranks, int rank) {
    const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank);
    if (place == ranks.end() || *place != rank) ranks.insert(place, rank);
  }

  // Returns a diagnosis of this call, with all ranks that wait in it.
  Diagnosis about(Cause cause, const Wait& wait) const {
    Diagnosis found{.cause = cause, .limit_s = limit_s_, .call = *wait.call, .group = *wait.group};
    for (const Wait& other : waits_) {
      if (other.call->group != wait.call->group || other.call->number != wait.call->number) continue;
      if (is_message(*other.call) && &other != &wait) continue;
      add(found.waiting, other.rank->rank);
      found.for_s = std::max(found.for_s, *other.call->waits_s);
    }
    return found;
  }

  std::optional<Diagnosis> ended() const {
    for (const Wait& wait : waits_) {
      if (*wait.call->waits_s < limits_.certain_after_s) continue;
      Diagnosis found = about(Cause::kEnded, wait);
      found.certain = true;
      const auto consider = [&](const std::vector<const RankState*>& ranks) {
        for (const RankState* rank : ranks) {
          if (rank->life == Life::kEnded) add(found.culprits, rank->rank);
        }
      };
      consider(wait.missing);
      consider(wait.present);
      if (!found.culprits.empty()) return found;
    }
    return std::nullopt;
  }

  std::optional<Diagnosis> differing() const {
    for (const Wait& wait : waits_) {
      if (is_message(*wait.call) || *wait.call->waits_s < limits_.certain_after_s) continue;
      std::map<std::string, std::vector<const RankState*>> sides;
      for (const RankState& rank : snapshot_.ranks) {
        const CallState* const call = call_of(rank, wait.call->group, wait.call->number);
        if (call != nullptr) sides[signature(*call)].push_back(&rank);
      }
      if (sides.size() < 2) continue;
      size_t least = SIZE_MAX;
      for (const auto& [_, ranks] : sides) least = std::min(least, ranks.size());
      Diagnosis found = about(Cause::kDiffer, wait);
      found.certain = true;
      std::vector<std::string> words;
      for (const auto& [_, ranks] : sides) {
        std::vector<int> numbers;
        for (const RankState* rank : ranks) numbers.push_back(rank->rank);
        if (ranks.size() == least) {
          for (const int rank : numbers) add(found.culprits, rank);
        }
        const CallState* const call = call_of(*ranks[0], wait.call->group, wait.call->number);
        words.push_back(text(ranks.size() == 1 ? "rank " : "ranks ", rank_list(numbers),
                             ranks.size() == 1 ? " calls " : " call ", full_label(*call), " at ", call->site));
      }
      found.notes.push_back(text("as number ", wait.call->number, ' ', join(words, ", ")));
      add_notes(found, wait);
      return found;
    }
    return std::nullopt;
  }

  // All ranks that this one waits for, directly or over others.
  void reach(const RankState& from, std::set<const RankState*>& seen) const {
    for (const Wait* wait : waits_of(from)) {
      for (const RankState* next : wait->missing) {
        if (seen.insert(next).second) reach(*next, seen);
      }
    }
  }

  std::optional<Diagnosis> missing() const {
    std::optional<Diagnosis> best;
    for (const Wait& wait : waits_) {
      if (wait.missing.empty() && !wait.has_unknown && held(wait).empty()) continue;
      auto found = follow(wait);
      if (found && (!best || found->for_s > best->for_s)) best = std::move(found);
    }
    return best;
  }

  // Members that have made the call, but are held in it by a stop or a debugger, or are out of reach.
  static std::vector<const RankState*> held(const Wait& wait) {
    std::vector<const RankState*> found;
    for (const RankState* rank : wait.present) {
      const bool is_out = rank->life == Life::kSilent;
      if (is_out || rank->life == Life::kStopped || rank->life == Life::kTraced) found.push_back(rank);
    }
    return found;
  }

  std::optional<Diagnosis> follow(const Wait& wait) const {
    std::set<const RankState*> reached;
    for (const RankState* rank : wait.missing) {
      reached.insert(rank);
      reach(*rank, reached);
    }
    Diagnosis found = about(Cause::kMissing, wait);
    double idle_s = 1e300;
    for (const RankState* rank : reached) {
      idle_s = std::min(idle_s, rank->progress_s);
      if (rank->life != Life::kRunning || waits_of(*rank).empty()) add(found.culprits, rank->rank);
    }
    for (const RankState* rank : held(wait)) add(found.culprits, rank->rank);
    if (found.culprits.empty() && !wait.has_unknown) {
      if (!reached.contains(wait.rank)) return std::nullopt;  // the way ends in a call that all have made
      return cycle(wait, found);
    }
    // A call of a rank in the middle of the chain is no news: the culprit's own wait is reported.
    judge(found, wait, idle_s);
    if (!found.certain && found.for_s < limit_s_) return std::nullopt;
    add_notes(found, wait);
    return found;
  }

  // Sets what is certain, and a time of 0 if a rank on the way has made progress.
  void judge(Diagnosis& found, const Wait& wait, double idle_s) const {
    bool held_all = !found.culprits.empty(), all_compute = !found.culprits.empty();
    for (const int culprit : found.culprits) {
      const RankState* const rank = state_of(culprit);
      held_all = held_all && (rank->life != Life::kRunning || rank->state == PageState::kLeft);
      all_compute = all_compute && hasten::flight::computes(*rank);
    }
    found.for_s = *wait.call->waits_s;
    found.certain = held_all && found.for_s >= limits_.certain_after_s;
    found.computes = all_compute && !held_all;
    if (!found.certain) found.for_s = std::min(found.for_s, idle_s);
    // Before a rank has a page it may be reading a large program. The meeting itself names it.
    if (found.culprits.empty()) found.for_s = 0;
  }

  std::optional<Diagnosis> cycle(const Wait& wait, Diagnosis found) const {
    std::vector<const Wait*> way = {&wait};
    std::map<const RankState*, size_t> places = {{wait.rank, 0}};
    while (true) {
      const RankState* const next = way.back()->missing.front();
      const auto known = places.find(next);
      if (known != places.end()) {
        way.erase(way.begin(), way.begin() + static_cast<std::ptrdiff_t>(known->second));
        break;
      }
      const auto waits = waits_of(*next);
      const auto blocked =
          std::find_if(waits.begin(), waits.end(), [](const Wait* one) { return !one->missing.empty(); });
      if (blocked == waits.end()) return std::nullopt;
      places[next] = way.size();
      way.push_back(*blocked);
    }
    found.cause = Cause::kCycle;
    found.certain = true;
    found.waiting.clear();
    found.for_s = 1e300;
    found.call = *way[0]->call;
    found.group = *way[0]->group;
    for (const Wait* one : way) {
      add(found.culprits, one->rank->rank);
      found.for_s = std::min(found.for_s, *one->call->waits_s);
      found.notes.push_back(text("rank ", one->rank->rank, " waits for rank ", one->missing.front()->rank, " in ",
                                 describe_call(*one->call, one->group)));
    }
    for (const Wait& one : waits_) {
      if (!std::binary_search(found.culprits.begin(), found.culprits.end(), one.rank->rank)) {
        add(found.waiting, one.rank->rank);
      }
    }
    if (found.for_s < limits_.certain_after_s) return std::nullopt;
    return found;
  }

  std::optional<Diagnosis> transport() const {
    for (const Wait& wait : waits_) {
      if (!wait.missing.empty() || wait.has_unknown || wait.present.empty()) continue;
      Diagnosis found = about(Cause::kTransport, wait);
      double idle_s = wait.rank->progress_s;
      for (const RankState* rank : wait.present) idle_s = std::min(idle_s, rank->progress_s);
      found.for_s = std::min(found.for_s, idle_s);
      for (const int rank : found.waiting) add_connections(found, *state_of(rank));
      // Large sums take long and show nothing. Without a connection that stands still this may be one.
      found.computes = found.notes.empty();
      if (found.for_s >= limit_s_) return found;
    }
    return std::nullopt;
  }

  static void add_connections(Diagnosis& found, const RankState& rank) {
    if (!rank.facts) return;
    for (const TcpFacts& one : rank.facts->connections) {
      add(found.culprits, rank.rank);
      found.notes.push_back(text("rank ", rank.rank, " -> ", one.peer, ": ", one.unacknowledged_bytes,
                                 " bytes are unacknowledged for ", one.silent_s, " s, sent again ", one.retransmits,
                                 " times"));
    }
  }

  std::optional<Diagnosis> idle() const {
    if (!waits_.empty() || snapshot_.ranks.empty()) return std::nullopt;
    const std::string& phase = snapshot_.ranks[0].phase;
    if (phase != "data" && phase != "checkpoint" && phase != "start") return std::nullopt;
    Diagnosis found{.cause = Cause::kIdle, .for_s = 1e300, .limit_s = limit_s_};
    for (const RankState& rank : snapshot_.ranks) {
      if (rank.phase != phase || rank.life == Life::kEnded || rank.life == Life::kSilent) return std::nullopt;
      add(found.culprits, rank.rank);
      found.for_s = std::min(found.for_s, rank.progress_s);
      found.computes = found.computes || hasten::flight::computes(rank);
    }
    if (found.for_s < limit_s_) return std::nullopt;
    found.notes.push_back("all ranks are in " + phase);
    return found;
  }

  // Where the calls of the two sides part, and steps that differ.
  void add_notes(Diagnosis& found, const Wait& wait) const {
    for (const int culprit : found.culprits) {
      const RankState* const rank = state_of(culprit);
      if (rank == wait.rank) continue;
      if (auto words = parting(*rank, *wait.rank, wait.call->group)) found.notes.push_back(*words);
      if (rank->step != wait.rank->step && (rank->step > 0 || wait.rank->step > 0)) {
        found.notes.push_back(text("rank ", culprit, " is in step ", rank->step + 1, " of epoch ", rank->epoch,
                                   ", rank ", wait.rank->rank, " in step ", wait.rank->step + 1, " of epoch ",
                                   wait.rank->epoch));
      }
      if (found.notes.size() >= 4) return;
    }
  }

  const RankState* state_of(int rank) const {
    const auto found =
        std::find_if(snapshot_.ranks.begin(), snapshot_.ranks.end(), [&](const auto& it) { return it.rank == rank; });
    return &*found;
  }

  const Snapshot& snapshot_;
  const HangLimits& limits_;
  const double limit_s_;
  std::vector<Wait> waits_;
};

}  // namespace

double hang_after_s(const Snapshot& snapshot, const HangLimits& limits) {
  if (limits.after_s > 0) return limits.after_s;
  const double step = median_step_s(snapshot);
  return step > 0 ? std::max(kLeastLimit, kStepsOfLimit * step) : kFirstLimit;
}

std::string Diagnosis::key() const {
  // Only the ranks' facts have the connections that stand still, so they are known once the ranks were asked.
  const std::string ranks = cause == Cause::kTransport ? "" : join(culprits, ",");
  return text(static_cast<int>(cause), ' ', ranks, ' ', group.key, ' ', call.number, ' ', static_cast<int>(call.kind),
              ' ', call.peer);
}

std::optional<Diagnosis> diagnose(const Snapshot& snapshot, const HangLimits& limits) {
  return Search(snapshot, limits).run();
}

}  // namespace hasten::flight
