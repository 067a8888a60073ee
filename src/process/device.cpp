// The choice of a device; see device.h.
#include "hasten/process/device.h"

#include "hasten/core/error.h"

namespace hasten::process {

c10::Device choose_device(const RankInfo& identity, int num_cuda_devices, bool cpu) {
  if (cpu || num_cuda_devices == 0) return c10::Device(c10::kCPU);
  if (identity.local_rank < num_cuda_devices) {
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(identity.local_rank));
  }
  throw UsageError(
      {"state", identity.rank, identity.world_size}, "local rank ", identity.local_rank,
      " has no device: ", identity.local_world_size, " processes on this machine, ", num_cuda_devices,
      " CUDA device(s) visible to this one. Start at most ", num_cuda_devices,
      " processes here, check CUDA_VISIBLE_DEVICES, or ask for the CPU (cpu = true, ACCELERATE_USE_CPU=1).");
}

}  // namespace hasten::process
