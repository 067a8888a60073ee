// How long a query to a store waits for its answer. libtorch's client waits for ever, so that ranks would hang with a
// server that is stopped, or whose machine has no power.
#pragma once

#include <chrono>

namespace hasten::comm {

/// Limits the wait for each answer of the store at `port`, on all connections of this process to it. Queries that are
/// under way keep their limit. 0: there is no such store.
void limit_answers(int port, std::chrono::milliseconds limit) noexcept;

/// Ends these connections, so that an answer that comes late is not taken for that of another query.
void cut_connections(int port) noexcept;

}  // namespace hasten::comm
