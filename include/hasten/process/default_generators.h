// DefaultGenerators: those that the operators of one rank draw from, the CPU's and its device's.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace hasten::process {

/// Reading and setting their states waits for no device.
class DefaultGenerators {
 public:
  /// `device`: an accelerator, or the CPU, which is then the only one.
  explicit DefaultGenerators(c10::Device device);

  /// Returns their states as tensors of the CPU, the CPU's first.
  std::vector<at::Tensor> states() const;
  /// They go on from these. Throws: c10::Error for a state of another kind of generator.
  void set_states(const std::vector<at::Tensor>& states);
  /// Returns the states that they would have after this seed; they themselves stay as they are.
  std::vector<at::Tensor> states_of_seed(uint64_t seed) const;

 private:
  std::vector<at::Generator> generators_;
};

}  // namespace hasten::process
