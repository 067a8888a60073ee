// Facts about the launcher's machine: cores, GPUs and other accelerators.
//
// Read from /sys, /proc and /dev, since the launcher is linked to neither libtorch nor CUDA.
#pragma once

#include <optional>
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
  /// Other accelerators that are there: "TPU", "XPU", "NPU", "HPU", "MLU", "MUSA", "SDAA", "NEURON".
  std::set<std::string> accelerators = {};
  std::optional<int> cpu_quota = {};  ///< of the control group, in CPUs
  std::string folder = "/";           ///< the current one
  /// Returns the CPUs that this process may use: those of `cpus`, at most the quota; at least 1.
  int num_cpus() const;
  /// The same for physical cores.
  int num_physical_cores() const;
  int num_gpus() const { return static_cast<int>(gpu_nodes.size()); }
};

/// Returns this machine: the CPUs that this process may run on, the GPUs that CUDA_VISIBLE_DEVICES leaves. `root` is
/// where /sys, /proc and /dev are looked for; empty: HASTEN_MACHINE_ROOT, which tests set.
Machine this_machine(const Environment& environment, std::string root = "");

/// Returns the numbers of a list as the kernel writes it: "0-3,8" is 0 1 2 3 8.
std::set<int> numbers_in(const std::string& ranges);

}  // namespace hasten::launcher
