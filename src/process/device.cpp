// The choice of a device; see device.h.
#include "hasten/process/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/cuda.h>

#include <algorithm>
#include <array>
#include <set>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"

namespace hasten::process {
namespace {

// Each rank of the host sees one GPU, and no two see the same one.
bool has_own_device(const RankInfo& identity, const std::vector<std::string>& of_host) {
  const bool all_known = std::none_of(of_host.begin(), of_host.end(), [](const auto& id) { return id.empty(); });
  return all_known && static_cast<int>(of_host.size()) == identity.local_world_size &&
         std::set<std::string>(of_host.begin(), of_host.end()).size() == of_host.size();
}

}  // namespace

int num_cuda_devices() {
  return torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
}

std::string only_device_id() {
  if (num_cuda_devices() != 1) return "";
  // The CUDA runtime is libtorch's. It is looked up, not linked, so that one build serves both kinds of libtorch.
  using Query = int (*)(char* id, int length, int device);
  const auto query = reinterpret_cast<Query>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  std::array<char, 32> id = {};
  if (query == nullptr || query(id.data(), static_cast<int>(id.size()), 0) != 0) return "";
  return id.data();
}

c10::Device choose_device(const RankInfo& identity, int num_cuda_devices, bool cpu,
                          const std::vector<std::string>& only_devices_of_host) {
  if (cpu || num_cuda_devices == 0) return c10::Device(c10::kCPU);
  if (identity.local_rank < num_cuda_devices) {
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(identity.local_rank));
  }
  if (num_cuda_devices == 1 && has_own_device(identity, only_devices_of_host)) return c10::Device(c10::kCUDA, 0);
  throw UsageError({"state", identity.rank, identity.world_size}, "local rank ", identity.local_rank,
                   " has no device: ", count_text(identity.local_world_size, "process"), " on this machine, ",
                   num_cuda_devices, " CUDA device(s) visible to this one. Start at most ",
                   count_text(num_cuda_devices, "process"),
                   " here, check CUDA_VISIBLE_DEVICES, or ask for the CPU (cpu = true, ACCELERATE_USE_CPU=1).");
}

c10::Device default_device(const Environment& environment) {
  const bool cpu = environment.flag("ACCELERATE_USE_CPU").value_or(false);
  return choose_device(read_rank_info(environment), num_cuda_devices(), cpu);
}

std::function<void()> device_for_threads() {
  if (num_cuda_devices() == 0) return [] {};
  const c10::Device device = c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice();
  return [device] {
    const auto* guard = c10::impl::getDeviceGuardImpl(c10::kCUDA);
    if (guard->getDevice() != device) guard->setDevice(device);
  };
}

c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index() || !c10::impl::hasDeviceGuardImpl(device.type())) return device;
  return c10::impl::getDeviceGuardImpl(device.type())->getDevice();
}

}  // namespace hasten::process
