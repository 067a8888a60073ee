// The backend for tensors of GPUs: NCCL, or what a test has put in its place.
#pragma once

#include <memory>

#include "comm/backend/backend.h"

namespace hasten::comm {

/// Makes a backend for CUDA tensors. `host` carries those of the CPU and outlives it.
using DeviceBackendMaker = std::unique_ptr<Backend> (*)(const BackendSetup& setup, Backend& host);

/// Returns true if make_device_backend can work: NCCL is built and a GPU is visible, or it has a double.
bool has_device_backend();
/// Collective: no; its ranks meet at the first collective. Throws: what the backend throws.
std::unique_ptr<Backend> make_device_backend(const BackendSetup& setup, Backend& host);

/// Tests: groups use `maker` in NCCL's place from now on; null: NCCL again.
void replace_device_backend(DeviceBackendMaker maker) noexcept;

}  // namespace hasten::comm
