// A collective writes past the dispatcher. Autograd, recorders and low-precision copies see that by the version.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/comm/group/group.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using testing::run_ranks;

TEST(GroupRanks, ATensorThatACollectiveWritesHasAnotherVersion) {
  run_ranks(2, [](Process& process) {
    const Group group = process.group();
    const int rank = process.rank();
    const auto is_counted = [&](const at::Tensor& tensor, const auto& call) {
      const auto before = tensor._version();
      call();
      return tensor._version() > before;
    };
    const at::Tensor one = torch::ones({4}), two = torch::ones({8}), parts = torch::ones({2, 4});

    EXPECT_TRUE(is_counted(one, [&] { group.all_reduce_(one); }));
    EXPECT_EQ(is_counted(one, [&] { group.reduce_(one, 0); }), rank == 0);
    EXPECT_EQ(is_counted(one, [&] { group.broadcast_(one, 0); }), rank == 1);
    EXPECT_TRUE(is_counted(two, [&] { group.all_gather_into_(two, one); }));
    EXPECT_TRUE(is_counted(one, [&] { group.reduce_scatter_into_(one, two); }));
    EXPECT_TRUE(is_counted(two, [&] { group.all_to_all_into_(two, parts.view({8})); }));
    EXPECT_EQ(is_counted(one, [&] { rank == 0 ? group.send(one, 1) : group.receive_(one, 0); }), rank == 1);
    const PointToPoint message{rank == 0 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kReceive, one, 1 - rank};
    EXPECT_EQ(is_counted(one, [&] { group.batch_send_recv({message}).wait(); }), rank == 1);
  });
}

TEST(GroupRanks, AGraphThatReadAReducedTensorBeforeIsRefused) {
  run_ranks(2, [](Process& process) {
    const at::Tensor weight = torch::ones({4}).requires_grad_(), scale = torch::full({4}, 2.0);
    const at::Tensor loss = (weight * scale).sum();

    process.group().all_reduce_(scale);

    EXPECT_THROW(loss.backward(), c10::Error);
  });
}

}  // namespace
}  // namespace hasten::comm
