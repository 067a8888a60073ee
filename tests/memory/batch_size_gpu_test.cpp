// The search for a batch size where the device's memory ends.
#include "hasten/memory/batch_size.h"

#include <gtest/gtest.h>

#include "support/device.h"

namespace hasten::memory {
namespace {

using testing::kGpu;

class BatchSizeGpu : public testing::OnGpu {};

TEST_F(BatchSizeGpu, HalvesUntilTheDeviceHasRoom) {
  if (auto* counts = testing::pretend::counts()) counts->limit_bytes = counts->bytes[0] + (int64_t{5} << 20);
  int tries = 0;
  const auto found = find_executable_batch_size(comm::Group(), int64_t{1} << 22, [&](int64_t rows) {
    ++tries;
    const auto all = torch::empty({rows, 1 << 20}, torch::TensorOptions(kGpu).dtype(at::kByte));
    return rows;
  });
  if (auto* counts = testing::pretend::counts()) counts->limit_bytes = 0;

  EXPECT_GT(tries, 1);
  EXPECT_GE(found, 4);
}

}  // namespace
}  // namespace hasten::memory
