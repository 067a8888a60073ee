// Errors of collectives name what each rank's call is for, or its line in the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/comm/group/group.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::run_ranks_collecting;

// Rank 1 left the loop before the others did.
void out_of_step(Process& process) {
  at::Tensor values = torch::ones({8});
  if (process.rank() == 1) {
    const Purpose purpose("random state of the loader");
    process.group().broadcast_(values, 0);
  } else {
    const Purpose purpose("gradients, bucket", 3);
    process.group().all_reduce_(values);
  }
}

testing::RankOptions over(BackendKind backend, bool check) {
  return {.check = check, .adjust = [backend](int, GroupOptions& options) { options.backend = backend; }};
}

TEST(SharedMemoryPurposeRanks, CallsThatDifferAreNamedByWhatTheyAreForWithARemedy) {
  for (const bool check : {false, true}) {
    for (const auto backend : {BackendKind::kSharedMemory, BackendKind::kGloo}) {
      const auto words = run_ranks_collecting(2, out_of_step, over(backend, check));

      EXPECT_THAT(words, Each(AllOf(HasSubstr("(gradients, bucket 3)"), HasSubstr("(random state of the loader)"),
                                    HasSubstr("loops of equal length and batch size (or join_uneven_inputs)"))))
          << "check " << check;
    }
  }
}

// if (is_main_process()) save_state(): the others are in their next backward.
TEST(SharedMemoryPurposeRanks, ACallOfAllRanksThatOneMakesAloneIsNamedWithItsRemedy) {
  for (const bool check : {false, true}) {
    for (const auto backend : {BackendKind::kSharedMemory, BackendKind::kGloo}) {
      const auto words = run_ranks_collecting(
          2,
          [](Process& process) {
            at::Tensor values = torch::ones({8});
            if (process.rank() == 0) {
              const Purpose purpose("save_state");
              process.group().broadcast_(values, 0);
            } else {
              const Purpose purpose("gradients, bucket", 0);
              process.group().all_reduce_(values);
            }
          },
          over(backend, check));

      EXPECT_THAT(words,
                  Each(HasSubstr("save_state is a call of all ranks, and rank 0 made it where rank 1 did not. Make "
                                 "it on every rank at the same place, not behind is_main_process(). ")))
          << "check " << check;
    }
  }
}

TEST(SharedMemoryPurposeRanks, ACallWithoutPurposeIsNamedByItsLine) {
  const auto words = run_ranks_collecting(
      2,
      [](Process& process) {
        at::Tensor values = torch::ones({8});
        process.rank() == 1 ? process.group().broadcast_(values, 0) : process.group().all_reduce_(values);
      },
      over(BackendKind::kSharedMemory, false));

  EXPECT_THAT(words, Each(HasSubstr("(purposes_ranks_test.cpp:")));
}

TEST(SharedMemoryPurposeRanks, ARankThatDoesNotComeIsToldWithThePurposeOfTheOthers) {
  auto options = over(BackendKind::kSharedMemory, false);
  options.timeout = std::chrono::milliseconds(300);

  const auto words = run_ranks_collecting(
      2,
      [](Process& process) {
        if (process.rank() == 1) return;
        const Purpose purpose("save_state");
        process.group().barrier();
      },
      options);

  EXPECT_THAT(words[0], HasSubstr("barrier (save_state) was not completed"));
}

}  // namespace
}  // namespace hasten::comm
