// Relay: sums that are handed from rank to rank, chunk by chunk.
//
// Chunks flow along the chain of ranks. Rank 0 writes a chunk of its input into a slot, each next rank adds its own
// values, and the last one completes the result. Receivers then copy it out. The ranks are at different chunks at the
// same time, so all have work. The slots are a few megabytes for any number of ranks, which the caches hold. A rank
// goes on as soon as the rank before it has passed a chunk on. It may be many chunks ahead of those that follow. If
// ranks outnumber the cores, each does much before it yields its core. A pipelined chain (Worringen, "Pipelining and
// Overlapping for MPI Collective Operations", 2003); the order of addition is the ranks'.
#pragma once

#include "comm/backend/reduction.h"
#include "comm/shared/memory/phase_protocol.h"

namespace hasten::comm::shared {

/// A rank's part of the result: the elements from `begin` up to `end`, the first of them to `to`.
struct Share {
  int64_t begin = 0, end = 0;
  std::byte* to = nullptr;
  /// No other rank takes them.
  bool alone = false;
};

/// Reduces `count` elements of `item` bytes, of two ranks or more. All ranks call it together, once all have
/// posted the operation's first step. `share.to` may be the same elements' place in `input`.
void chain_reduce(PhaseProtocol& steps, const Folding& fold, int64_t item, int64_t count, const std::byte* input,
                  const Share& share);

/// How much of all ranks' areas it uses.
size_t chain_reduce_bytes(int world_size);

}  // namespace hasten::comm::shared
