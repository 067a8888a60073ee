// Which device a process computes on.
//
// The choice is a pure function; Process carries it out. One process drives one device, the one with the
// number of its local rank, as torchrun's users expect.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "hasten/process/rank_info.h"

namespace hasten::process {

/// Returns the CPU if `cpu` or no CUDA device is there, else the CUDA device with the number of the local rank. In a
/// world of one that is cuda:0. `only_devices_of_host`: the identifiers of the one device that each local rank sees, by
/// local rank. If all are known and differ (srun --gpus-per-task=1), each rank takes its cuda:0.
/// Throws: UsageError if there are fewer CUDA devices than local ranks.
c10::Device choose_device(const RankInfo& identity, int num_cuda_devices, bool cpu,
                          const std::vector<std::string>& only_devices_of_host = {});

/// Returns the device that a process of this environment computes on, for one that does not join its run.
/// Throws: UsageError as read_rank_info and choose_device.
c10::Device default_device(const Environment& environment = Environment::current());

/// Returns the number of CUDA devices that this process sees.
int num_cuda_devices();
/// Returns the PCI bus id of the one CUDA device that this process sees; "" if it sees none or several.
std::string only_device_id();

/// Returns the device with the index that it stands for now: `cuda` is the thread's current CUDA device.
c10::Device with_index(c10::Device device);

/// Returns a function that gives a thread the CUDA device of this one. A thread begins with device 0, where its first
/// use of CUDA would take memory for nothing.
std::function<void()> device_for_threads();

}  // namespace hasten::process
