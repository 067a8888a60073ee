// Reading a scheduler's state: numbers of a core::Value, and the message for a state that lacks them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::optim::detail {

/// Returns the numbers of a list. Throws: UsageError for another kind.
std::vector<double> doubles_of(const core::Value& list);

/// Calls `read`. Throws: UsageError that names the scheduler, if `read` throws one.
void read_state(const std::string& scheduler, const std::function<void()>& read);

}  // namespace hasten::optim::detail
