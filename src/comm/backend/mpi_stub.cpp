// Replaces mpi.cpp if hasten is built without MPI.
#include "comm/backend/mpi.h"

namespace hasten::comm {

bool mpi_is_built() {
  return false;
}

std::unique_ptr<Backend> make_mpi(const BackendSetup&) {
  return nullptr;
}

}  // namespace hasten::comm
