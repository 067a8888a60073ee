// Filling up and cutting; see distributed_dl.h.
#include "hasten/data/loader/distributed_dl.h"

namespace hasten::data {

Indices contiguous_block(const Indices& order, int rank, int world_size) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw UsageError(Origin{"data"}, "rank ", rank, " of a world of ", world_size,
                     ": ranks go from 0 to world_size - 1.");
  }
  const size_t world = static_cast<size_t>(world_size);
  Indices block((order.size() + world - 1) / world);
  const size_t begin = block.size() * static_cast<size_t>(rank);
  for (size_t i = 0; i < block.size(); ++i) block[i] = order[(begin + i) % order.size()];
  return block;
}

}  // namespace hasten::data
