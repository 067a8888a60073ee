#include "comm/cross_check.h"
#include "comm/on_shared_memory.h"

namespace hasten::comm {
namespace {

TEST(SharedMemorySlow, TenThousandRandomCallsGiveWhatGlooGives) {
  cross_checks::cross_check(10000);
}

// More bytes than 31 bits count, with what is at both sides of that border and at the end told apart.
constexpr int64_t kBorder = int64_t{1} << 31;
constexpr int64_t kManyBytes = kBorder + (100 << 20) + 3;

at::Tensor many_bytes(int rank) {
  at::Tensor bytes = torch::full({kManyBytes}, rank + 1, at::kByte);
  for (const int64_t i : {int64_t{0}, kBorder - 1, kBorder, kManyBytes - 1}) bytes[i] = 10 * rank + i % 7 + 20;
  return bytes;
}

void on_two_ranks(const testing::RankFunction& fn) {
  testing::run_ranks(2, fn, on_shared_memory(std::chrono::seconds(100)));
}

TEST(SharedMemorySlow, MoreThanTwoGigabytesAreReduced) {
  constexpr int64_t kCount = kManyBytes / 4;
  on_two_ranks([](process::Process& process) {
    at::Tensor tensor = torch::full({kCount}, process.rank() + 1.0F);
    process.group().all_reduce_(tensor);
    EXPECT_EQ(tensor.min().item<float>(), 3);
    EXPECT_EQ(tensor.max().item<float>(), 3);
  });
}

TEST(SharedMemorySlow, MoreThanTwoGigabytesAreReducedAndScattered) {
  constexpr int64_t kCount = kManyBytes / 8;
  on_two_ranks([](process::Process& process) {
    at::Tensor output = torch::empty({kCount});
    process.group().reduce_scatter_into_(output, torch::full({2 * kCount}, process.rank() + 1.0F));
    EXPECT_EQ(output.min().item<float>(), 3);
    EXPECT_EQ(output.max().item<float>(), 3);
  });
}

TEST(SharedMemorySlow, MoreThanTwoGigabytesAreBroadcast) {
  on_two_ranks([](process::Process& process) {
    at::Tensor bytes = process.rank() == 1 ? many_bytes(1) : torch::zeros({kManyBytes}, at::kByte);
    process.group().broadcast_(bytes, 1);
    EXPECT_TRUE(torch::equal(bytes, many_bytes(1)));
  });
}

TEST(SharedMemorySlow, MoreThanTwoGigabytesAreGathered) {
  on_two_ranks([](process::Process& process) {
    at::Tensor all = torch::empty({2 * kManyBytes}, at::kByte);
    process.group().all_gather_into_(all, many_bytes(process.rank()));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(torch::equal(all.narrow(0, rank * kManyBytes, kManyBytes), many_bytes(rank))) << rank;
    }
  });
}

TEST(SharedMemorySlow, MoreThanTwoGigabytesGoFromAllToAll) {
  on_two_ranks([](process::Process& process) {
    const int me = process.rank(), peer = 1 - me;
    std::vector<at::Tensor> parts(2, torch::full({5}, me, at::kByte));
    parts[peer] = many_bytes(me);
    const auto received = process.group().all_to_all(parts);
    EXPECT_TRUE(torch::equal(received[me], parts[me]));
    EXPECT_TRUE(torch::equal(received[peer], many_bytes(peer)));
  });
}

TEST(SharedMemorySlow, MoreThanTwoGigabytesAreSent) {
  on_two_ranks([](process::Process& process) {
    if (process.rank() == 0) return process.group().send(many_bytes(0), 1);
    at::Tensor bytes = torch::zeros({kManyBytes}, at::kByte);
    process.group().receive_(bytes, 0);
    EXPECT_TRUE(torch::equal(bytes, many_bytes(0)));
  });
}

}  // namespace
}  // namespace hasten::comm
