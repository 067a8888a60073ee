// NCCL in a world of one, on a GPU: each collective gives what it should, and the backend closes at once.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace hasten::comm
