#include "hasten/parallel/join/operations.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/comm/nested/objects.h"
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

/// A loop in which ranks below `num_out` have run out of data.
struct HalfEnded : training::JoinScope {
  explicit HalfEnded(int num_out) : num_out(num_out) {}
  training::ActiveRanks notify(const training::JoinCall&) override { return {}; }
  void require_all(const std::string& what) override {
    asked.push_back(what);
    if (num_out > 0) throw UsageError(Origin{"join"}, what, " needs all ranks");
  }
  void reject(const std::string& what) override { throw UsageError(Origin{"join"}, what); }
  int num_out;
  std::vector<std::string> asked = {};
};

TEST(Operations, CollectivesOfTheProgramsOwnAskTheOpenLoop) {
  run_ranks(2, [](Process& process) {
    const auto operations = operations_of(process);
    const comm::Group own = operations->own_process().group();
    own.barrier();
    const auto all_have_data = std::make_shared<HalfEnded>(0), one_has_none = std::make_shared<HalfEnded>(1);
    operations->set_join(all_have_data);
    own.barrier();
    comm::gather_object(operations->own_group(), 1);
    comm::gather_object(operations->group(), 1);
    process.group().barrier();
    operations->set_join(one_has_none);
    EXPECT_THROW(own.barrier(), UsageError);
    EXPECT_THROW(operations->own_group().split(0), UsageError);
    EXPECT_THROW(operations->own_process().wait_for_everyone(), UsageError);
    operations->set_join(nullptr);
    own.with_check(true).barrier();

    ASSERT_EQ(all_have_data->asked.size(), 2u);
    EXPECT_EQ(all_have_data->asked[0].find("barrier on the process's group"), 0u);
    EXPECT_EQ(all_have_data->asked[1].find("all_gather on the process's group"), 0u);
    EXPECT_EQ(one_has_none->asked.size(), 3u);
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
