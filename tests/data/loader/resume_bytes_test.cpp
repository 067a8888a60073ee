// What going on in mid-epoch costs, counted in bytes: what tensors take (all that libtorch allocates on this
// thread) and what else lies in the heap while the pass is alive. Indices are counted in
// loader_state_test.cpp.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>

#include "hasten/data/loader/loader.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using testing::Range;

/// Adds up every allocation of tensor memory on this thread while it lives.
class TensorBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    if (size > 0) allocated += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t allocated = 0;
};

struct Cost {
  int64_t tensor_bytes = 0, heap_bytes = 0;
};

int64_t heap_bytes() {
  const auto info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

/// Returns the bytes of going on in the middle of an epoch of `num_samples`, up to the first batch.
Cost cost_of_resuming(size_t num_samples, Order order) {
  const auto counter = std::make_shared<TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  const int64_t before = heap_bytes();
  auto ours = loader(Range(num_samples), SeedableRandomSampler(num_samples, {.seed = 1, .order = order}), 64);
  ours.load_state({.seed = 1, .epoch = 7, .position = num_samples / 2, .num_samples = num_samples});
  auto it = ours.begin();
  EXPECT_EQ(it->size(), 64u);
  return {counter->allocated, heap_bytes() - before};
}

TEST(ResumeBytes, AHundredMillionSamplesInKeyedOrderTakeAFewKilobytes) {
  const Cost cost = cost_of_resuming(100'000'000, Order::kKeyed);

  EXPECT_LT(cost.tensor_bytes, 64 << 10);
  EXPECT_LT(cost.heap_bytes, 256 << 10);
}

TEST(ResumeBytes, AreCountedAsPyTorchsPermutationShows) {
  EXPECT_GE(cost_of_resuming(1'000'000, Order::kTorch).tensor_bytes, 8'000'000);
}

}  // namespace
}  // namespace hasten::data
