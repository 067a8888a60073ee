// Hooks of the pretend device: torch::cuda::is_available() is true, memory can be pinned, generators are there.
#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdio>
#include <cstdlib>

#include "support/pretend/generator.h"
#include "support/pretend/guard.h"
#include "support/pretend/memory.h"
#include "support/pretend/streams.h"

namespace hasten::testing::pretend {
namespace {

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return num_devices() > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex current_device() const override { return pretend::current_device(); }
  c10::DeviceIndex deviceCount() const override { return num_devices(); }
  int getNumGPUs() const override { return num_devices(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return pretend::current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override { Guard().synchronizeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const auto device = device_of(data);
    TORCH_CHECK(device, "The specified pointer resides on host memory and is not registered with any CUDA device.");
    return {kType, *device};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? pretend::current_device() : device, c10::default_rng_seed_val);
  }
};

std::unique_ptr<at::CUDAHooksInterface> make_hooks(at::CUDAHooksArgs) {
  return std::make_unique<Hooks>();
}

// Comes before the first use of CUDA's hooks, which libtorch makes once.
[[maybe_unused]] const bool is_installed = [] {
  TORCH_CHECK(!at::CUDAHooksRegistry()->Has("CUDAHooks"), "the pretend device is for CPU builds of libtorch");
  at::CUDAHooksRegistry()->Register("CUDAHooks", &make_hooks);
  c10::SetAllocator(kType, &device_allocator(), 1);
  return true;
}();

}  // namespace

// CUDA's runtime: where a device is plugged in. HASTEN_PRETEND_BUS_ID of the environment; without it there is no
// answer.
extern "C" int cudaDeviceGetPCIBusId(char* id, int length, int /*device*/) {
  constexpr int kInvalidValue = 1;
  const char* text = std::getenv("HASTEN_PRETEND_BUS_ID");
  if (text == nullptr) return kInvalidValue;
  std::snprintf(id, static_cast<size_t>(length), "%s", text);
  return 0;
}

}  // namespace hasten::testing::pretend
