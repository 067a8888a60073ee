#include "comm/cross_check.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

TEST(SharedMemorySlow, TenThousandRandomCallsGiveWhatGlooGives) {
  cross_checks::cross_check(10000);
}

TEST(SharedMemorySlow, MoreThanTwoGigabytesAreReduced) {
  constexpr int64_t kCount = 600'000'000;
  hasten::testing::run_ranks(
      2,
      [](state::Process& process) {
        at::Tensor tensor = torch::full({kCount}, process.rank() + 1.0F);
        process.group().all_reduce_(tensor);
        EXPECT_EQ(tensor.min().item<float>(), 3);
        EXPECT_EQ(tensor.max().item<float>(), 3);
      },
      {.timeout = std::chrono::seconds(100), .check = false, .adjust = [](int, GroupOptions& options) {
         options.backend = BackendKind::kSharedMemory;
       }});
}

}  // namespace
}  // namespace hasten::comm
