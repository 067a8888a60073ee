// The groups of a layout, and the loaders' view of a process.
#include "hasten/parallel/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Layout, RefusesSizesThatDoNotFit) {
  const auto words = [](const ParallelOptions& options) {
    return testing::run_ranks_collecting(2, [&](process::Process& process) { const Layout made(process, options); })[0];
  };
  EXPECT_THAT(words({.pp = 3}), HasSubstr("pp"));
  EXPECT_THAT(words({.tp = 3}), HasSubstr("tp"));
}

}  // namespace
}  // namespace hasten::parallel
