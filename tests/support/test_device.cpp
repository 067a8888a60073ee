// See test_device.h.
#include "support/test_device.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <string>

namespace hasten::testing {

bool on_device() {
  const char* name = std::getenv("HASTEN_TEST_DEVICE");
  return name != nullptr && std::string(name) == "cuda";
}

c10::Device test_device(int rank) {
  if (!on_device()) return c10::Device(at::kCPU);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(rank)};
}

c10::Device test_device() {
  return on_device() ? c10::impl::VirtualGuardImpl(at::kCUDA).getDevice() : c10::Device(at::kCPU);
}

at::Tensor here(const at::Tensor& tensor) {
  return tensor.to(test_device());
}

bool same_values(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (!on_device()) return at::equal(a, b);
  const at::Tensor x = a.detach().cpu(), y = b.detach().cpu();
  return x.sizes() == y.sizes() && at::allclose(x, y, tolerance, tolerance);
}

bool same_values(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_values(a[i], b[i], tolerance)) return false;
  }
  return true;
}

}  // namespace hasten::testing
