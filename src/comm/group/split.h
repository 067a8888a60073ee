// split_ranks: which ranks form a group after a split by color and key (MPI_Comm_split).
#pragma once

#include <vector>

namespace hasten::comm {

/// A rank's arguments of split.
struct SplitKey {
  int color = 0;
  int key = 0;
};

/// Returns the ranks of this color, by key, ranks of equal keys in their order.
std::vector<int> split_ranks(const std::vector<SplitKey>& by_rank, int color);

}  // namespace hasten::comm
