// See generator.h.
#include "support/pretend/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

namespace hasten::testing::pretend {
namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  DeviceGenerator(c10::DeviceIndex device, at::Generator numbers)
      : c10::GeneratorImpl(c10::Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        numbers_(std::move(numbers)) {}

  void set_current_seed(uint64_t seed) override { numbers_.set_current_seed(seed); }
  uint64_t current_seed() const override { return numbers_.current_seed(); }
  uint64_t seed() override { return numbers_.seed(); }
  void set_offset(uint64_t offset) override { numbers_.set_offset(offset); }
  uint64_t get_offset() const override { return numbers_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { numbers_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return numbers_.unsafeGetGeneratorImpl()->get_state();
  }
  const at::Generator& numbers() const { return numbers_; }

 private:
  c10::GeneratorImpl* clone_impl() const override { return new DeviceGenerator(device().index(), numbers_.clone()); }

  at::Generator numbers_;
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device, uint64_t seed) {
  return at::make_generator<DeviceGenerator>(device, at::detail::createCPUGenerator(seed));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* const generators = [] {
    auto* all = new std::vector<at::Generator>;
    for (c10::DeviceIndex index = 0; index < num_devices(); ++index) {
      all->push_back(new_generator(index, c10::default_rng_seed_val));
    }
    return all;
  }();
  return generators->at(static_cast<size_t>(device < 0 ? current_device() : device));
}

at::Generator numbers_of(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kType, "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  return static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl())->numbers();
}

}  // namespace hasten::testing::pretend
