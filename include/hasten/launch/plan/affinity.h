// Which CPUs a worker may run on: torchrun's --numa-binding.
//
// A worker's home is the NUMA node of its GPU (local rank r has GPU r). Without GPUs the workers are dealt out evenly
// over the nodes. The plan covers all workers before the first starts. Each worker binds itself before it executes its
// program, so that threads and children inherit it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "hasten/launch/base/machine.h"

namespace hasten::launcher {

/// Returns the CPUs of each of `num_workers` workers. `mode` is one of torchrun's. "node": all of the home node.
/// "socket": all of its socket. "exclusive": a share of the node's cores that no other worker has. "core-complex": the
/// cores that share a cache, a different cache for each worker as far as there are. Throws: UsageError if a node has
/// fewer cores than workers that need one for themselves.
std::vector<std::set<int>> bound_cpus(const Machine& machine, const std::string& mode, int num_workers);

/// Returns the shortage of "exclusive": a sentence for each NUMA node with fewer cores than workers that need one.
std::vector<std::string> problems_of_exclusive_binding(const Machine& machine, int num_workers);

/// Binds this process to `cpus`. Throws: UsageError if the system refuses.
void bind_to(const std::set<int>& cpus);

}  // namespace hasten::launcher
