// Facts about the launcher's machine: cores and GPUs.
//
// Read from /sys and /proc, since the launcher is linked to neither libtorch nor CUDA.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::launcher {

/// A logical CPU that this process may use.
struct Cpu {
  int number = 0;
  int core = 0;  ///< the lowest logical CPU of the same physical core
  int node = 0;  ///< its NUMA node
  int socket = 0;
  int cache = 0;  ///< the lowest logical CPU that shares its last level of cache
};

struct Machine {
  std::vector<Cpu> cpus = {};       ///< by number
  std::vector<int> gpu_nodes = {};  ///< the NUMA node of each GPU that is visible, in their order; -1 if unknown
  std::string folder = "/";         ///< the current one
  int num_physical_cores() const;
  int num_gpus() const { return static_cast<int>(gpu_nodes.size()); }
};

/// Returns this machine: the CPUs that this process may run on, the GPUs that CUDA_VISIBLE_DEVICES leaves. `root` is
/// where /sys and /proc are looked for (tests). Collective: no. Blocks: no. Throws: nothing.
Machine this_machine(const Environment& environment, const std::string& root = "");

/// Returns the numbers of a list as the kernel writes it: "0-3,8" is 0 1 2 3 8.
std::set<int> numbers_in(const std::string& ranges);

}  // namespace hasten::launcher
