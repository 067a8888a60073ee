// Comparing the calls of ranks: when two are one call, and where two ranks' calls part.
#pragma once

#include <optional>
#include <string>

#include "hasten/flight/snapshot.h"

namespace hasten::flight {

/// Equal for calls that fit together.
std::string signature(const CallState& call);

/// "all_reduce(sum) of float32 [4, 3], root 2".
std::string full_label(const CallState& call);

/// A sentence on the first number of the group at which both have the same call from different lines.
std::optional<std::string> parting(const RankState& culprit, const RankState& other, uint64_t group);

}  // namespace hasten::flight
