// The GPU of tests labelled gpu: a real one, or the pretend device (support/pretend).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <vector>

#include "hasten/process/process.h"
#include "support/pretend/counts.h"

namespace hasten::testing {

inline const c10::Device kGpu(c10::kCUDA, 0);

/// Tests that need a GPU derive from it: without one they fail by name and not by what comes first.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      FAIL() << "there is no GPU. Without one, run this program with the pretend device (ctest -L pretend).";
    }
  }
};

inline bool is_pretend() {
  return pretend::counts() != nullptr;
}

/// Returns how often the host waits for the device in `fn`. A GPU cannot count: there it is 1 if `fn` came back after
/// the work that the GPU had before, else 0.
template <class Fn>
int64_t waits_of(const Fn& fn) {
  if (const auto* counts = pretend::counts()) {
    const int64_t before = counts->waits;
    fn();
    return counts->waits - before;
  }
  const auto big = torch::randn({8192, 8192}, torch::TensorOptions(kGpu).dtype(at::kHalf));
  c10::Event busy(c10::kCUDA);
  for (int i = 0; i < 30; ++i) big.mm(big);
  busy.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kGpu));
  fn();
  const bool waited = busy.query();
  torch::cuda::synchronize();
  return waited ? 1 : 0;
}

/// Returns how many kernels `fn` starts on the pretend device.
template <class Fn>
int64_t kernels_of(const Fn& fn) {
  const auto* counts = pretend::counts();
  const int64_t before = counts->kernels;
  fn();
  return counts->kernels - before;
}

inline c10::DeviceAllocator& device_allocator() {
  return *c10::getDeviceAllocator(c10::kCUDA);
}

/// Bytes that tensors take on the GPU, at most since device_allocator().resetPeakStats(0).
inline int64_t peak_bytes() {
  const auto stats = device_allocator().getDeviceStats(kGpu.index());
  return stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

/// A process of one rank on `device`.
inline process::Process alone_on(c10::Device device) {
  return {process::RankInfo{}, comm::Group(), device};
}

/// Copies of the values, on the CPU.
inline std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& tensor : tensors) values.push_back(tensor.detach().cpu().clone());
  return values;
}

inline void expect_near(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                        double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const auto a = found[i].to(at::kFloat), b = expected[i].to(at::kFloat);
    EXPECT_TRUE(torch::allclose(a, b, tolerance, tolerance))
        << "tensor " << i << " differs by " << (a - b).abs().max().item<double>();
  }
}

}  // namespace hasten::testing
