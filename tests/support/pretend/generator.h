// Generators of the pretend device: CUDA's to libtorch, numbers of the CPU's kernels.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include "support/pretend/streams.h"

namespace hasten::testing::pretend {

at::Generator new_generator(c10::DeviceIndex device, uint64_t seed);
const at::Generator& default_generator(c10::DeviceIndex device);
/// The CPU's generator behind one of the device; throws as CUDA does for a generator of the CPU.
at::Generator numbers_of(const at::Generator& generator);

}  // namespace hasten::testing::pretend
