// Replaces mpi.cpp if hasten is built without MPI.
#include "comm/backend/mpi.h"
#include "hasten/core/error.h"

namespace hasten::comm {

bool mpi_is_built() {
  return false;
}

std::unique_ptr<Backend> make_mpi(const BackendSetup& setup) {
  throw UsageError(Origin{"comm", setup.rank, setup.world_size},
                   "backend mpi was asked for, but this hasten is built without MPI. Build it with "
                   "-DHASTEN_WITH_MPI=ON (apt-get install libopenmpi-dev), or use gloo.");
}

}  // namespace hasten::comm
