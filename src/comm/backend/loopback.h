// Loopback: a backend without peers, for a rank that waits to take its place among the others. Every peer counts as a
// copy of this rank.
#pragma once

#include <memory>

#include "comm/backend/backend.h"

namespace hasten::comm {

/// Sums are multiplied by the number of ranks, gathered parts are equal, broadcast and barrier do nothing. Messages
/// throw, since there is no rank that would take them.
std::unique_ptr<Backend> make_loopback(int rank, int world_size);

}  // namespace hasten::comm
