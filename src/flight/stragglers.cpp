// See stragglers.h.
#include "hasten/flight/stragglers.h"

#include <algorithm>
#include <utility>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::flight {
namespace {

constexpr size_t kNumWindows = 4, kLeastWindows = 3;
constexpr double kLeastShare = 0.05;  // of a step
constexpr double kExplains = 0.8;     // of what a rank is late
constexpr const char* kLessCpu = "less CPU";

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Value>
std::vector<double> of_others(const PaceWindow& window, int rank, const Value& value) {
  std::vector<double> values;
  for (const RankPace& pace : window) {
    if (pace.rank != rank) values.push_back(value(pace));
  }
  return values;
}

const RankPace* pace_of(const PaceWindow& window, int rank) {
  const auto found =
      std::find_if(window.begin(), window.end(), [&](const RankPace& pace) { return pace.rank == rank; });
  return found == window.end() ? nullptr : &*found;
}

// The rank that waits least, if the others wait so much longer that it matters.
std::optional<Straggler> late_in(const PaceWindow& window) {
  if (window.size() < 2) return std::nullopt;
  const RankPace& least = *std::min_element(
      window.begin(), window.end(), [](const RankPace& a, const RankPace& b) { return a.waited_s < b.waited_s; });
  std::vector<double> steps;
  for (const RankPace& pace : window) steps.push_back(pace.step_s);
  const double others = median(of_others(window, least.rank, [](const RankPace& pace) { return pace.waited_s; }));
  const Straggler found{.rank = least.rank, .step_s = median(steps), .late_s = others - least.waited_s};
  if (found.step_s <= 0 || found.late_s <= kLeastShare * found.step_s) return std::nullopt;
  return found;
}

double phase_of(const RankPace& pace, const std::string& name) {
  const auto found = pace.phases_s.find(name);
  return found == pace.phases_s.end() ? 0 : found->second;
}

// Waits of collectives lie inside of some phases. So a phase explains a delay by what the rank has more of it.
void name_cause(const PaceWindow& window, Straggler& found) {
  const RankPace& own = *pace_of(window, found.rank);
  const auto consider = [&](const std::string& name, double mine, double others) {
    if (mine - others < kExplains * found.late_s || mine - others <= found.cause_s) return;
    found.cause = name;
    found.cause_s = mine - others;
    found.own_s = mine;
    found.others_s = others;
  };
  for (const auto& [name, mine] : own.phases_s) {
    consider(name, mine,
             median(of_others(window, found.rank, [&](const RankPace& pace) { return phase_of(pace, name); })));
  }
  // It says more than the phase in which the rank is slow.
  const double others = median(of_others(window, found.rank, [](const RankPace& pace) { return pace.delayed_s; }));
  if (own.delayed_s - others < kExplains * found.late_s) return;
  found.cause_s = 0;
  consider(kLessCpu, own.delayed_s, others);
}

std::string milliseconds(double seconds) {
  return core::fixed_text(1e3 * seconds, seconds < 0.01 ? 1 : 0) + " ms";
}

RankPace pace_between(const RankState& before, const RankState& now, double seconds) {
  const auto steps = static_cast<double>(now.step - before.step);
  RankPace pace{.rank = now.rank,
                .step_s = seconds / steps,
                .waited_s = std::max(0.0, now.waited_s - before.waited_s) / steps,
                .delayed_s = std::max(0.0, now.delayed_s - before.delayed_s) / steps};
  for (const auto& [name, time] : now.phase_times_s) {
    const auto then = before.phase_times_s.find(name);
    pace.phases_s[name] = (time - (then == before.phase_times_s.end() ? 0 : then->second)) / steps;
  }
  return pace;
}

}  // namespace

std::optional<Straggler> find_straggler(const std::vector<PaceWindow>& windows) {
  if (windows.size() < kLeastWindows) return std::nullopt;
  auto found = late_in(windows.back());
  if (!found) return std::nullopt;
  const auto first = windows.end() - static_cast<std::ptrdiff_t>(std::min(kNumWindows, windows.size()));
  const auto same = std::count_if(first, windows.end(), [&](const PaceWindow& window) {
    const auto late = late_in(window);
    return late && late->rank == found->rank;
  });
  if (same < static_cast<std::ptrdiff_t>(kLeastWindows)) return std::nullopt;
  name_cause(windows.back(), *found);
  return found;
}

std::string describe(const Straggler& straggler) {
  std::string words =
      text("rank ", straggler.rank, " costs the run ", core::fixed_text(100 * straggler.late_s / straggler.step_s, 0),
           " %: the others wait ", milliseconds(straggler.late_s), " a step for it");
  if (straggler.cause.empty()) return words;
  return text(words, "; it has ", milliseconds(straggler.cause_s), " more of ", straggler.cause, " (",
              milliseconds(straggler.own_s), ", others ", milliseconds(straggler.others_s), ")");
}

bool StragglerWatch::add(const Snapshot& snapshot) {
  const auto& ranks = snapshot.ranks;
  const bool fits = std::equal(start_.begin(), start_.end(), ranks.begin(), ranks.end(),
                               [](const RankState& then, const RankState& now) {
                                 return then.rank == now.rank && then.pid == now.pid && then.step <= now.step;
                               });
  if (!fits || start_.empty()) {
    if (!fits) windows_.clear();
    start_ = ranks;
    return false;
  }
  const bool whole = std::all_of(ranks.begin(), ranks.end(), [&](const RankState& now) {
    return now.step - start_[static_cast<size_t>(&now - ranks.data())].step >= steps_;
  });
  if (!whole) return false;
  PaceWindow window;
  for (size_t i = 0; i < ranks.size(); ++i) {
    window.push_back(pace_between(start_[i], ranks[i], ranks[i].read_at_s - start_[i].read_at_s));
  }
  start_ = ranks;
  windows_.push_back(std::move(window));
  if (windows_.size() > kNumWindows) windows_.erase(windows_.begin());
  return true;
}

}  // namespace hasten::flight
