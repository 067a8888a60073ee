// Which backend carries CPU tensors; see backend.h.
#include "hasten/comm/backend.h"

#include <torch/types.h>

#include <algorithm>

#include "comm/shared/sharing.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"

namespace hasten::comm {

at::Tensor Backend::allocate(int64_t num_bytes) {
  return torch::empty({num_bytes}, at::kByte);
}

std::unique_ptr<Backend> make_cpu_backend(const BackendSetup& setup) {
  const auto gloo = [&] {
    return make_gloo({setup.store.scoped("gloo"), setup.rank, setup.world_size, setup.options});
  };
  if (setup.options.backend == BackendKind::kGloo) return gloo();
  const bool by_name = setup.options.backend == BackendKind::kSharedMemory;
  const Origin origin{"comm", setup.rank, setup.world_size};
  const Store store = setup.store.scoped("shm");
  const std::string mine = setup.options.host.empty() ? shared::this_host() : setup.options.host;
  const auto hosts = shared::hosts_of(store, setup.rank, setup.world_size, mine, setup.options.timeout);
  const bool one_host = !hosts[0].empty() && std::all_of(hosts.begin(), hosts.end(),
                                                         [&](const std::string& host) { return host == hosts[0]; });
  if (!one_host) {
    if (!by_name) return gloo();
    const auto other = std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host != hosts[0]; });
    throw UsageError(origin, "backend shm was asked for, but rank 0 and rank ",
                     other == hosts.end() ? 1 : other - hosts.begin(),
                     " are not known to be on one host. Leave the choice to hasten (HASTEN_BACKEND=auto), or use gloo.");
  }
  try {
    return make_shared_memory({store, setup.rank, setup.world_size, setup.options});
  } catch (const shared::NotShared& error) {
    if (by_name) {
      throw UsageError(origin, "backend shm was asked for, but memory cannot be shared: ", error.what(),
                       ". Use gloo, or mend that.");
    }
    Logger("comm", {setup.rank, setup.world_size})
        .warning(text("memory cannot be shared between the ranks of group '", setup.options.name,
                      "', so Gloo is used, which is slower (", error.what(), ")."));
    return gloo();
  }
}

}  // namespace hasten::comm
