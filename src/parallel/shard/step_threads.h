// StepThreads: how many threads step, where optimizer state rests on the CPU (OffloadOptions::step_cores).
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>

#include "hasten/core/cpu_quota.h"

#include "hasten/parallel/shard/options.h"

namespace hasten::parallel::shard {

/// Returns the threads of one of `num_ranks` ranks of a host: the part `step_cores` of the cores, rounded up as
/// DeepSpeed does, at least 1. Returns 0 where they stay as they are.
inline int num_step_threads(const OffloadOptions& options, int num_cores, int num_ranks) {
  if (options.device != OffloadDevice::kCpu || options.step_cores <= 0) return 0;
  const int cores = num_cores - static_cast<int>((1.0 - std::min(options.step_cores, 1.0)) * num_cores);
  return std::max(1, cores / std::max(1, num_ranks));
}

/// Sets libtorch's threads of the calling thread while it exists.
class StepThreads {
 public:
  StepThreads(const OffloadOptions& options, int num_ranks) : before_(at::get_num_threads()) {
    const int threads = num_step_threads(options, usable_cpus(), num_ranks);
    if (threads > 0 && threads != before_) at::set_num_threads(threads);
  }
  ~StepThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  StepThreads(const StepThreads&) = delete;
  StepThreads& operator=(const StepThreads&) = delete;

 private:
  int before_;
};

}  // namespace hasten::parallel::shard
