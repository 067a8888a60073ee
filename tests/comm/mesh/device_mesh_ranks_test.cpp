#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using testing::run_ranks;

TEST(DeviceMeshRanks, EachAxisSumsOverItsOwnRanks) {
  run_ranks(6, [](Process& process) {
    const DeviceMesh mesh(process.group(), {{"dp", 2}, {"tp", 3}});
    const int rank = process.rank();
    const auto tp = torch::full({1}, rank, at::kInt), dp = torch::full({1}, rank, at::kInt);
    mesh.group("tp").all_reduce_(tp);
    mesh.group("dp").all_reduce_(dp);

    EXPECT_EQ(tp.item<int>(), rank < 3 ? 0 + 1 + 2 : 3 + 4 + 5);
    EXPECT_EQ(dp.item<int>(), 2 * (rank % 3) + 3);
    EXPECT_EQ(mesh.group("tp").rank(), mesh.coordinate("tp"));
    EXPECT_EQ(mesh.group("dp").world_size(), 2);
  });
}

TEST(DeviceMeshRanks, AnAxisThatIsNotUsedIsNotConnected) {
  run_ranks(4, [](Process& process) {
    const DeviceMesh mesh(process.group(), {{"dp", 2}, {"tp", 2}});
    mesh.group("dp").barrier();

    EXPECT_EQ(mesh.group("tp").backend_name(), "not connected");
    EXPECT_NE(mesh.group("dp").backend_name(), "not connected");
  });
}

TEST(DeviceMeshRanks, SeveralAxesAreOneGroup) {
  run_ranks(4, [](Process& process) {
    const DeviceMesh mesh(process.group(), {{"dp", 2}, {"cp", 1}, {"tp", 2}});
    const auto sum = torch::full({1}, process.rank(), at::kInt);
    const Group both = mesh.flatten({"dp", "cp"});
    both.all_reduce_(sum);

    EXPECT_EQ(both.world_size(), 2);
    EXPECT_EQ(sum.item<int>(), 2 * (process.rank() % 2) + 2);
  });
}

TEST(DeviceMeshRanks, RanksWithOtherAxesAreToldSo) {
  run_ranks(2, [](Process& process) {
    EXPECT_THROW(DeviceMesh(process.group(), {{process.rank() == 0 ? "dp" : "tp", 2}}), CommError);
  });
}

TEST(GroupSplit, MakesOneGroupAColorOrderedByKey) {
  run_ranks(4, [](Process& process) {
    const int rank = process.rank();
    const auto group = process.group().split(rank == 3 ? -1 : rank % 2, -rank);
    if (rank == 3) {
      EXPECT_FALSE(group);
      return;
    }
    const auto sum = torch::full({1}, rank, at::kInt);
    group->all_reduce_(sum);

    EXPECT_EQ(group->world_size(), rank == 1 ? 1 : 2);
    EXPECT_EQ(group->rank(), rank == 0 ? 1 : 0);
    EXPECT_EQ(sum.item<int>(), rank == 1 ? 1 : 2);
  });
}

TEST(GroupSplit, ALazyGroupRefusesAMessageBeforeItsRanksHaveConnected) {
  run_ranks(2, [](Process& process) {
    const auto group = process.group().split(0, process.rank(), {.lazy = true});
    const auto value = torch::full({1}, process.rank(), at::kInt);
    EXPECT_THROW(process.rank() == 0 ? group->send(value, 1) : group->receive_(value, 0), UsageError);

    group->connect_backends();
    process.rank() == 0 ? group->send(value, 1) : group->receive_(value, 0);

    EXPECT_EQ(value.item<int>(), 0);
  });
}

TEST(GroupSplit, AGroupThatFailsBeforeItIsConnectedStaysClosed) {
  run_ranks(2, [](Process& process) {
    const auto group = process.group().split(0, process.rank(), {.lazy = true});
    group->fail("stopped by the test");

    EXPECT_THROW(group->barrier(), CommError);
    EXPECT_THROW(group->connect_backends(), CommError);
  });
}

}  // namespace
}  // namespace hasten::comm
