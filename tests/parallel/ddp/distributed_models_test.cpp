#include "hasten/parallel/ddp/distributed_models.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "hasten/core/error.h"
#include "hasten/process/process.h"

namespace hasten::parallel {
namespace {

TEST(DistributedModels, OneModuleIsDistributedOnceAsLongAsSomebodyOwnsIt) {
  const process::Process process({.cpu = true});
  DistributedModels models;
  torch::nn::Linear a(1, 1), b(1, 1);

  const auto first = models.distribute(*a, process.group(), {});
  EXPECT_EQ(models.distribute(*a, process.group(), {}), first);
  {
    const auto other = models.distribute(*b, process.group(), {});
    EXPECT_NE(other, first);
    EXPECT_EQ(models.all().size(), 2u);
  }
  EXPECT_EQ(models.all(), DistributedModels::Models{first});
}

TEST(DistributedModels, AModelOfSomebodyElseIsRefused) {
  const process::Process process({.cpu = true});
  DistributedModels ours, theirs;
  torch::nn::Linear net(1, 1);
  const auto mine = ours.distribute(*net, process.group(), {});
  const auto foreign = theirs.distribute(*net, process.group(), {});

  EXPECT_NO_THROW(ours.require(mine));
  EXPECT_THROW(ours.require(foreign), UsageError);
}

}  // namespace
}  // namespace hasten::parallel
