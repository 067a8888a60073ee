// The MPI backend: CPU tensors through the MPI that started the program, chosen by BackendKind::kMpi or
// HASTEN_BACKEND=mpi.
//
// mpi.cpp needs the headers of an MPI (HASTEN_WITH_MPI); without it mpi_stub.cpp is compiled, and Group::connect
// refuses.
#pragma once

#include <memory>

#include "comm/backend/backend.h"

namespace hasten::comm {

/// Returns true if make_mpi can work in this build.
bool mpi_is_built();

/// MPI among the ranks of `setup`, which are processes of one MPI job, in any order. Initialises MPI, unless the
/// program has, for calls from several threads, and finalises it at the program's end. Collective: yes. Blocks: until
/// all ranks have come. The stub returns null. Throws: UsageError outside of an MPI job, or if this MPI does not allow
/// several threads; CommError.
std::unique_ptr<Backend> make_mpi(const BackendSetup& setup);

}  // namespace hasten::comm
