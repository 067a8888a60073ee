// DistributedType: Accelerate's names of what takes part in a run.
#pragma once

#include "hasten/process/process.h"

namespace hasten::process {

enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp, kDeepSpeed, kMegatronLm };

/// Returns kNo in a world of one, else the kind of this process's device.
inline DistributedType distributed_type(const Process& process) noexcept {
  if (process.world_size() == 1) return DistributedType::kNo;
  return process.device().is_cuda() ? DistributedType::kMultiGpu : DistributedType::kMultiCpu;
}

}  // namespace hasten::process
