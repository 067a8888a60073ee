// Checksums of tensors where they lie: ranks compare numbers, and a device's values do not go to the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hasten::parallel {

/// Returns a number for each tensor's values, int64 [tensors] on the CPU: equal for equal values of one dtype on
/// devices of one kind. Undefined tensors and those without memory have 0. Blocks: once a device, until it is done.
at::Tensor checksums(const std::vector<at::Tensor>& tensors);

}  // namespace hasten::parallel
