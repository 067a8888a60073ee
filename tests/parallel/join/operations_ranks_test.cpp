#include "hasten/parallel/join/operations.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using testing::run_ranks;

std::shared_ptr<Operations> operations_of(const Process& process) {
  return std::make_shared<Operations>(process, std::make_shared<training::GradientState>());
}

TEST(Operations, ATriggerOfOneRankReachesAllOnce) {
  run_ranks(3, [](Process& process) {
    const auto operations = operations_of(process);
    if (process.rank() == 1) operations->set_trigger();

    EXPECT_TRUE(operations->check_trigger());
    EXPECT_FALSE(operations->check_trigger());
  });
}

TEST(Operations, CollectivesAreChecked) {
  run_ranks(2, [](Process& process) {
    const auto operations = operations_of(process);
    const auto mine = torch::ones({2 + process.rank(), 1 + process.rank()});

    EXPECT_THROW(operations->gather(mine, comm::Group::Site::current()), CommError);
  });
}

TEST(Operations, NothingIsRejectedOutsideAJoinedLoop) {
  const auto operations = operations_of(Process(process::RankInfo{}, comm::Group()));

  EXPECT_FALSE(operations->is_joining());
  EXPECT_NO_THROW(operations->reject_in_join("prepare"));
  EXPECT_TRUE(operations->notify(training::JoinCall{"models", "backward"}).ranks.empty());
}

}  // namespace
}  // namespace hasten::parallel
