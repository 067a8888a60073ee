// See split.h.
#include "comm/group/split.h"

#include <algorithm>
#include <cstddef>

namespace hasten::comm {

std::vector<int> split_ranks(const std::vector<SplitKey>& by_rank, int color) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].color == color) ranks.push_back(static_cast<int>(rank));
  }
  const auto key_of = [&](int rank) { return by_rank[static_cast<size_t>(rank)].key; };
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
  return ranks;
}

}  // namespace hasten::comm
