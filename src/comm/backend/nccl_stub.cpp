// Replaces nccl.cpp if libtorch is no CUDA build.
#include "comm/backend/backend.h"

namespace hasten::comm {

bool nccl_is_built() {
  return false;
}

std::unique_ptr<Backend> make_nccl(const BackendSetup&) {
  return nullptr;
}

}  // namespace hasten::comm
