// NCCL in a world of one, on a GPU: each collective gives what it should, and the backend ends.
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "comm/backend/backend.h"
#include "support/device.h"

namespace hasten::comm {
namespace {

using testing::kGpu;

class NcclGpu : public testing::OnGpu {};

TEST_F(NcclGpu, CollectivesOfOneRankGiveWhatTheyShould) {
  if (!nccl_is_built()) GTEST_SKIP() << "there is no NCCL in this build";
  const auto nccl = make_nccl({Store::in_process(), 0, 1, GroupOptions{.timeout = std::chrono::seconds(20)}});
  const auto x = torch::arange(8, torch::TensorOptions(kGpu).dtype(at::kFloat));
  auto sum = x.clone(), gathered = torch::zeros({8}, kGpu), scattered = torch::zeros({8}, kGpu);
  nccl->all_reduce(sum, ReduceOp::kSum)->wait();
  nccl->all_gather(gathered, x)->wait();
  nccl->reduce_scatter(scattered, x, ReduceOp::kSum)->wait();
  const auto bytes = x.clone().view(at::kByte), there = torch::zeros_like(bytes);
  nccl->broadcast(bytes, 0)->wait();
  nccl->all_to_all(there, {there.numel()}, {bytes})->wait();
  const auto nothing = torch::empty({0}, there.options());
  nccl->all_to_all(nothing, {0}, {nothing})->wait();

  EXPECT_TRUE(sum.equal(x));
  EXPECT_TRUE(gathered.equal(x));
  EXPECT_TRUE(scattered.equal(x));
  EXPECT_TRUE(there.view(at::kFloat).equal(x));
}

// libtorch's threads end with the group, and kernels under way before them.
TEST_F(NcclGpu, AGroupWithWorkUnderWayEnds) {
  if (!nccl_is_built()) GTEST_SKIP() << "there is no NCCL in this build";
  auto nccl = make_nccl({Store::in_process(), 0, 1, GroupOptions{.timeout = std::chrono::seconds(20)}});
  const auto values = torch::ones({1 << 24}, kGpu);
  for (int i = 0; i < 20; ++i) nccl->all_reduce(values, ReduceOp::kSum);
  auto end = std::async(std::launch::async, [&] { nccl.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_TRUE(values.eq(1).all().item<bool>());
}

}  // namespace
}  // namespace hasten::comm
