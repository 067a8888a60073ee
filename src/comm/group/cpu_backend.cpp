// Which backend carries CPU tensors; see make_cpu_backend in backend.h.
#include <torch/types.h>

#include "comm/backend/backend.h"
#include "comm/backend/mpi.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/shared/memory/segment_setup.h"
#include "comm/store/store_all_gather.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/text.h"

namespace hasten::comm {

std::unique_ptr<Backend> make_cpu_backend(const BackendSetup& setup) {
  const auto gloo = [&] {
    return make_gloo({setup.store.scoped("gloo"), setup.rank, setup.world_size, setup.options});
  };
  if (setup.options.backend == BackendKind::kGloo) return gloo();
  if (setup.options.backend == BackendKind::kMpi) {
    return make_mpi({setup.store.scoped("mpi"), setup.rank, setup.world_size, setup.options});
  }
  const bool by_name = setup.options.backend == BackendKind::kSharedMemory;
  const Origin origin{"comm", setup.rank, setup.world_size};
  const Store store = setup.store.scoped("shm");
  const std::string mine = setup.options.host.empty() ? shared::this_host() : setup.options.host;
  const auto hosts = store_all_gather(store, "host", setup.rank, setup.world_size, mine, setup.options.timeout);
  const Hosts by_host = group_by_host(hosts);
  const auto size = by_host.size();
  if (by_name && size > 1) {
    throw UsageError(
        origin, "backend shm was asked for, but rank 0 and rank ", by_host[1][0],
        " are not known to be on one host. Leave the choice to hasten (HASTEN_BACKEND=auto), or use gloo.");
  }
  if (size == hosts.size()) return gloo();
  try {
    const BackendSetup scoped{store, setup.rank, setup.world_size, setup.options};
    return size == 1 ? make_shared_memory(scoped) : make_hierarchical(scoped, by_host);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
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
