// See process_parts.h.
#include "process/process_parts.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <climits>
#include <string>
#include <thread>
#include <vector>

#include "hasten/core/cpu_quota.h"
#include "hasten/core/error.h"
#include "hasten/process/device.h"

namespace hasten::process {
namespace {

/// Leaves word of the one GPU that this rank sees, and returns those of the ranks of its host, by local rank.
/// Waits for them only if this rank's number is none of its devices'.
std::vector<std::string> only_devices_of_host(const RankInfo& identity, bool cpu, const comm::Store& store,
                                              std::chrono::milliseconds timeout) {
  const auto key = [&](int local_rank) { return text("device/", identity.node_rank, '/', local_rank); };
  try {
    store.set(key(identity.local_rank), cpu ? "" : only_device_id());
  } catch (const CommError&) {
    // Rank 0 has ended already, as by a wrong option. This rank comes to the same error, or to one that names the end.
  }
  std::vector<std::string> found;
  if (cpu || num_cuda_devices() != 1 || identity.local_rank == 0) return found;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (static_cast<int>(found.size()) < identity.local_world_size && std::chrono::steady_clock::now() < deadline) {
    if (auto id = store.get(key(static_cast<int>(found.size())))) {
      found.push_back(*std::move(id));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return found;
}

}  // namespace

void limit_threads(const Environment& environment) {
  if (environment.has("OMP_NUM_THREADS") || environment.has("MKL_NUM_THREADS")) return;
  const auto quota = cpu_quota(environment.text("HASTEN_MACHINE_ROOT").value_or(""));
  if (quota && *quota < at::get_num_threads()) at::set_num_threads(*quota);
}

c10::Device take_device(const RankInfo& identity, bool stays, const Environment& environment, const comm::Store* store,
                        std::chrono::milliseconds timeout) {
  const bool cpu = stays || environment.flag("ACCELERATE_USE_CPU").value_or(false);
  std::vector<std::string> of_host;
  if (store != nullptr) of_host = only_devices_of_host(identity, cpu, *store, timeout);
  const c10::Device device = choose_device(identity, num_cuda_devices(), cpu, of_host);
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

bool asks_for_replacements(const RankInfo& identity, const Environment& environment) {
  return identity.world_size > 1 && environment.integer("HASTEN_SURVIVE", 0, INT_MAX).value_or(0) > 0;
}

void require_none_replaced(const RankInfo& identity, const Environment& environment) {
  if (!asks_for_replacements(identity, environment)) return;
  throw UsageError(
      Origin{"process", identity.rank, identity.world_size},
      "a Process of the program's own under hasten launch --survive: a rank that is replaced could not come "
      "back in. Let an Accelerator make it and train in accelerator.survive, or start the program without "
      "--survive.");
}

}  // namespace hasten::process
