// Which device a process computes on.
//
// The choice is a pure function; Process carries it out. One process drives one device, the one with the
// number of its local rank, as torchrun's users expect.
#pragma once

#include <c10/core/Device.h>

#include "hasten/process/rank_info.h"

namespace hasten::process {

/// Returns the CPU if `cpu` or no CUDA device is there, else the CUDA device with the number of the local rank. In a
/// world of one that is cuda:0.
/// Collective: no. Blocks: no. Throws: UsageError if there are fewer CUDA devices than local ranks.
c10::Device choose_device(const RankInfo& identity, int num_cuda_devices, bool cpu);

}  // namespace hasten::process
