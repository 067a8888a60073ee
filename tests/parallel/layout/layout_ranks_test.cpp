// The groups of a layout, and the loaders' view of a process.
#include "hasten/parallel/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include "hasten/core/error.h"
#include "hasten/parallel/layout/parallel_options.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using ::testing::HasSubstr;

TEST(Layout, DividesRanksAmongAxes) {
  testing::run_ranks(8, [](process::Process& process) {
    const Layout layout(process, {.dp_replicate = 2, .cp = 2, .tp = -1});
    EXPECT_TRUE(layout.divides_model());
    EXPECT_EQ(layout.tensor().world_size(), 2);
    EXPECT_EQ(layout.tensor().rank(), process.rank() % 2);
    EXPECT_EQ(layout.context().rank(), process.rank() / 2 % 2);
    EXPECT_EQ(layout.data().rank(), process.rank() / 4);
    EXPECT_EQ(layout.model().rank(), process.rank() % 4);
    const auto seen = layout.data_process(process);
    EXPECT_EQ(seen.rank(), process.rank() / 4);
    EXPECT_EQ(seen.world_size(), 2);
  });
}

TEST(Layout, IsTheProcessesOwnGroupWithoutOptions) {
  testing::run_ranks(2, [](process::Process& process) {
    const Layout layout(process, {});
    EXPECT_FALSE(layout.divides_model());
    EXPECT_EQ(layout.data().world_size(), 2);
    EXPECT_EQ(layout.data_process(process).rank(), process.rank());
  });
}

TEST(Layout, HasThePlaceOfEachRankAlongItsAxes) {
  testing::run_ranks(8, [](process::Process& process) {
    const int rank = process.rank();
    const Layout layout(process, {.dp_shard = 2, .tp = 2, .pp = 2});
    EXPECT_EQ(layout.rank_along(plan::Axis::kTp), rank % 2);
    EXPECT_EQ(layout.rank_along(plan::Axis::kDpShard), rank / 2 % 2);
    EXPECT_EQ(layout.rank_along(plan::Axis::kPp), rank / 4);
    EXPECT_EQ(layout.rank_along(plan::Axis::kDpReplicate), 0);
    EXPECT_EQ(layout.rank_along_sequence(), 0);
    EXPECT_EQ(layout.mesh().group("pp").rank(), rank / 4);
    EXPECT_EQ(layout.mesh().group("cp").world_size(), 1);
    EXPECT_EQ(layout.place().words, plan::coordinate_text(layout.sizes(), rank));
    EXPECT_EQ(layout.place().rank, rank);
  });
}

TEST(Layout, OfDataAloneHasAMeshAsWell) {
  testing::run_ranks(4, [](process::Process& process) {
    const Layout layout(process, {.dp_replicate = 2, .dp_shard = -1});
    const auto& shard = layout.mesh().group("dp_shard");
    const at::Tensor rank = at::full({1}, process.rank());
    shard.all_reduce_(rank);
    EXPECT_EQ(rank.item<int64_t>(), process.rank() < 2 ? 1 : 5);
    EXPECT_EQ(&layout.mesh(), &layout.mesh()) << "made once";
    EXPECT_EQ(layout.rank_along(plan::Axis::kDpReplicate), process.rank() / 2);
    EXPECT_EQ(layout.place().words, "");
  });
}

TEST(Layout, OfASequenceHasThePlaceAlongCpOrSp) {
  testing::run_ranks(2, [](process::Process& process) {
    EXPECT_EQ(Layout(process, {.cp = 2}).rank_along_sequence(), process.rank());
    EXPECT_EQ(Layout(process, {.sp = 2}).rank_along_sequence(), process.rank());
  });
}

TEST(Layout, ThatTheProgramDoesNotSetHasNoPlaces) {
  testing::run_ranks(2, [](process::Process& process) {
    const Layout layout(process, {});
    EXPECT_THAT([&] { layout.rank_along(plan::Axis::kTp); },
                ::testing::ThrowsMessage<UsageError>(HasSubstr("no layout is set")));
    EXPECT_THAT([&] { layout.mesh(); }, ::testing::ThrowsMessage<UsageError>(HasSubstr("no layout is set")));
  });
  const Layout alone(process::Process(), {.tp = -1});
  EXPECT_EQ(alone.rank_along(plan::Axis::kTp), 0) << "one process of a program that lays out its ranks";
}

TEST(Layout, RefusesSizesThatDoNotFit) {
  const auto words = [](const ParallelOptions& options) {
    return testing::run_ranks_collecting(2, [&](process::Process& process) { const Layout made(process, options); })[0];
  };
  EXPECT_THAT(words({.pp = 3}), HasSubstr("pp"));
  EXPECT_THAT(words({.tp = 3}), HasSubstr("tp"));
}

}  // namespace
}  // namespace hasten::parallel
