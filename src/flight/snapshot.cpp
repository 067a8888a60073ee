// See snapshot.h.
#include "hasten/flight/snapshot.h"

#include <algorithm>

#include "hasten/core/text.h"

namespace hasten::flight {

double median_step_s(const Snapshot& snapshot) {
  std::vector<double> times;
  for (const RankState& rank : snapshot.ranks) {
    times.insert(times.end(), rank.step_times_s.begin(), rank.step_times_s.end());
  }
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    if (end >= i + 2) {
      parts.push_back(text(ranks[i], '-', ranks[end]));
    } else {
      for (size_t j = i; j <= end; ++j) parts.push_back(text(ranks[j]));
    }
    i = end + 1;
  }
  return join(parts, " ");
}

}  // namespace hasten::flight
