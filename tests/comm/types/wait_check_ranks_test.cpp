#include "hasten/comm/types/wait_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <latch>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::HasSubstr;
using testing::run_ranks;

TEST(WaitCheckRanks, EndsTheWaitOfItsThread) {
  std::latch gave_up(1);
  run_ranks(2, [&](Process& process) {
    if (process.rank() == 1) return gave_up.wait();
    int num_calls = 0;
    const WaitCheck check([&] { return ++num_calls < 3; });
    try {
      process.group().with_check(false).all_reduce_(torch::ones({4}));
      ADD_FAILURE() << "rank 1 has not come";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("all_reduce was not completed: the wait was interrupted"));
    }
    EXPECT_EQ(num_calls, 3);
    process.group().fail("interrupted");
    gave_up.count_down();
  });
}

TEST(WaitCheckRanks, EndsTheWaitForAMessage) {
  std::latch gave_up(1);
  run_ranks(2, [&](Process& process) {
    if (process.rank() == 1) return gave_up.wait();
    if (process.group().backend_name() == "shm") {
      const WaitCheck check([] { return false; });
      EXPECT_THROW(process.group().with_check(false).receive_(torch::ones({4}), 1), CommError);
    }
    gave_up.count_down();
  });
}

TEST(WaitCheckRanks, DoesNotTouchAWaitThatEndsWell) {
  run_ranks(2, [](Process& process) {
    const at::Tensor tensor = torch::ones({4});
    {
      const WaitCheck outer([] { return true; }), inner([] { return true; });
      EXPECT_TRUE(WaitCheck::is_active());
      process.group().all_reduce_(tensor);
    }
    EXPECT_FALSE(WaitCheck::is_active());
    EXPECT_EQ(tensor[0].item<float>(), 2);
  });
}

TEST(WaitCheckRanks, ATimeoutThatWasSetLaterHolds) {
  std::latch timed_out(1);
  run_ranks(2, [&](Process& process) {
    if (process.rank() == 1) return timed_out.wait();
    const Group group = process.group().with_check(false);
    group.set_timeout(std::chrono::milliseconds(50));
    try {
      group.all_reduce_(torch::ones({4}));
      ADD_FAILURE() << "rank 1 has not come";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("not completed within 0.05 s"));
    }
    group.fail("timed out");
    timed_out.count_down();
  });
}

}  // namespace
}  // namespace hasten::comm
