// The device on which a suite's ranks train: the CPU, or with HASTEN_TEST_DEVICE=cuda a device each.
//
// So one program tests both. CTest starts the suites of sharding, offload, dispatch and checkpoints a second time, with
// the pretend device (support/pretend) preloaded. What is one host's mapping alone is left out there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

namespace hasten::testing {

/// Returns true if HASTEN_TEST_DEVICE is cuda.
bool on_device();
/// The device of a rank: the CPU, or the device of the rank's number.
c10::Device test_device(int rank);
/// The device of the rank whose thread calls (run_ranks), or of rank 0.
c10::Device test_device();

/// Returns the tensor on the calling rank's device.
at::Tensor here(const at::Tensor& tensor);

/// Returns true if values are equal, wherever they are. On a device other kernels add up in another order: there they
/// may differ by `tolerance`, relative and absolute.
bool same_values(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-5);
bool same_values(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance = 1e-5);

}  // namespace hasten::testing
