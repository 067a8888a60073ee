// store_all_gather: the exchange of a few words between ranks that have only a store in common.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "hasten/comm/store/store.h"

namespace hasten::comm {

/// Each rank's `mine` (a line of text, which may be empty) by rank, under keys that begin with `topic`. Collective over
/// the ranks that use `store`, once for each topic. Blocks: until all have come. Throws: CommError.
std::vector<std::string> store_all_gather(const Store& store, const std::string& topic, int rank, int world_size,
                                          const std::string& mine, std::chrono::milliseconds timeout);

/// Polls again and again, soon at first, until `ready` or the deadline. Returns whether it was ready.
bool poll_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& ready);

/// Random bytes, for a caller's secret.
std::string random_hex(int num_bytes);

}  // namespace hasten::comm
