// `hasten plan --measure`: what the processes of a run really do, as a cluster file (docs/plan.md).
#pragma once

#include <string>

namespace hasten::self_test {

/// Measures products, attention, copies and all-reduces on all processes of this run. Rank 0 writes the constants to
/// `path`, on other ranks it is not used. Returns the exit code.
/// Collective: yes. Blocks: yes. Throws: UsageError for a file that cannot be written; CommError.
int measure(const std::string& path);

}  // namespace hasten::self_test
