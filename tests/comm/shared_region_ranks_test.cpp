#include "hasten/comm/shared_region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <sstream>

#include "hasten/core/error.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;

TEST(SharedRegion, EveryRankReadsWhatAnotherWrote) {
  run_ranks(3, [](auto& process) {
    const Group& group = process.group();
    const auto region = SharedRegion::create(group, 4096);
    region.tensor(64 * group.rank(), 4, at::kFloat).fill_(group.rank() + 1);
    group.barrier();

    for (int rank = 0; rank < 3; ++rank) {
      const auto* values = reinterpret_cast<const float*>(region.data() + 64 * rank);
      EXPECT_EQ(values[3], rank + 1);
    }
    EXPECT_THAT(region.local_ranks(), ElementsAre(0, 1, 2));
    EXPECT_EQ(region.local_index(), group.rank());
    group.barrier();
  });
}

TEST(SharedRegion, EachHostHasItsOwn) {
  const auto two_hosts = [](int rank, GroupOptions& options) {
    options.host = rank % 2 == 0 ? "even" : "odd";
    options.address = "127.0.0.1";
  };
  run_ranks(4,
            [](auto& process) {
              const Group& group = process.group();
              const auto region = SharedRegion::create(group, 4096);
              if (region.local_index() == 0) region.tensor(0, 1, at::kFloat).fill_(group.rank() + 10);
              group.barrier();

              EXPECT_EQ(*reinterpret_cast<const float*>(region.data()), group.rank() % 2 + 10);
              EXPECT_EQ(region.host_index(), group.rank() % 2);
              EXPECT_THAT(region.hosts(), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
              group.barrier();
            },
            {.adjust = two_hosts});
}

TEST(SharedRegion, AWorldOfOneHasOneToo) {
  const auto region = SharedRegion::create(Group(), 128);
  region.tensor(0, 2, at::kFloat).fill_(5);

  EXPECT_EQ(*reinterpret_cast<const float*>(region.data()), 5);
}

TEST(SharedRegion, WhatIsWrittenToItsFileIsSeenInBothMappingsOfAllRanks) {
  run_ranks(2, [](auto& process) {
    const Group& group = process.group();
    const auto region = SharedRegion::create(group, 12288);
    region.tensor(0, 3072, at::kFloat).narrow(0, group.rank() * 1536, 1536).fill_(1);
    group.barrier();
    const at::Tensor values = at::arange(700, at::kFloat);
    if (group.rank() == 1) region.write(4 * 1000, values.const_data_ptr(), 4 * 700);
    group.barrier();

    const auto* seen = reinterpret_cast<const float*>(region.data());
    EXPECT_EQ(seen[999], 1);
    EXPECT_TRUE(at::equal(region.tensor(4000, 700, at::kFloat), values));
    EXPECT_EQ(seen[1699], 699);
    EXPECT_EQ(seen[1700], 1);
    EXPECT_THROW(region.write(12284, values.const_data_ptr(), 8), InternalError);
    group.barrier();
  });
}

using SharedRegionFile = testing::InFolder;

TEST_F(SharedRegionFile, RestsInAFileOfWhichNoNameIsLeft) {
  run_ranks(2, [&](auto& process) {
    const auto region = SharedRegion::create(process.group(), 8192, {.file = path("region")});
    process.group().barrier();  // the first rank takes the name away at the end

    EXPECT_FALSE(std::filesystem::exists(path("region")));
    std::stringstream maps;
    maps << std::ifstream("/proc/self/maps").rdbuf();
    EXPECT_NE(maps.str().find(path("region") + " (deleted)"), std::string::npos);
    process.group().barrier();
  });
}

TEST_F(SharedRegionFile, AFileThatCannotBeMadeIsRefusedOnAllRanks) {
  const auto words = run_ranks_collecting(
      2, [&](auto& process) { SharedRegion::create(process.group(), 8192, {.file = path("no/such/folder")}); });

  for (const auto& said : words) EXPECT_THAT(said, HasSubstr("no/such/folder"));
}

TEST(ReduceLocal, GivesTheBitsOfAnAllReduce) {
  run_ranks(3, [](auto& process) {
    const Group& group = process.group();
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      std::vector<at::Tensor> inputs;
      for (int rank = 0; rank < 3; ++rank) {
        auto generator = at::make_generator<at::CPUGeneratorImpl>(rank);
        inputs.push_back(at::randn({1001}, generator, at::TensorOptions(at::kFloat)).to(dtype));
      }
      at::Tensor reduced = inputs[group.rank()].clone(), local = at::empty_like(reduced);

      group.all_reduce_(reduced, ReduceOp::kMean);
      reduce_local(local, inputs, ReduceOp::kMean);

      EXPECT_TRUE(at::equal(reduced, local));
    }
  });
}

}  // namespace
}  // namespace hasten::comm
