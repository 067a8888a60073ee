// See device_backend.h.
#include "comm/backend/device_backend.h"

#include <atomic>

namespace hasten::comm {
namespace {

std::atomic<DeviceBackendMaker>& replacement() {
  static std::atomic<DeviceBackendMaker> maker = nullptr;
  return maker;
}

}  // namespace

bool has_device_backend() {
  return replacement() != nullptr || nccl_is_built();
}

std::unique_ptr<Backend> make_device_backend(const BackendSetup& setup, Backend& host) {
  if (const DeviceBackendMaker maker = replacement()) return maker(setup, host);
  return make_nccl(setup);
}

void replace_device_backend(DeviceBackendMaker maker) noexcept {
  replacement() = maker;
}

}  // namespace hasten::comm
