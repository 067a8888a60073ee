#include "hasten/training/accumulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Which of `batches` batches of a loader end a window, over two epochs.
std::vector<bool> windows(const AccumulationOptions& options, int batches) {
  Accumulation accumulation(options);
  GradientState gradients;
  std::vector<bool> ends;
  for (int epoch = 0; epoch < 2; ++epoch) {
    LoaderPosition position;
    gradients.enter(&position);
    for (int batch = 0; batch < batches; ++batch) {
      position.end_of_dataloader = batch + 1 == batches;
      accumulation.next(gradients);
      ends.push_back(gradients.sync_gradients());
    }
    gradients.leave(&position);
  }
  return ends;
}

TEST(Accumulation, EndsAWindowEveryFewBatches) {
  EXPECT_THAT(windows({.num_steps = 2}, 4), ElementsAre(false, true, false, true, false, true, false, true));
}

TEST(Accumulation, TheLoadersLastBatchEndsAWindowAndTheNextEpochBeginsANewOne) {
  EXPECT_THAT(windows({.num_steps = 2}, 3), ElementsAre(false, true, true, false, true, true));
}

TEST(Accumulation, WithoutTheLoaderWindowsGoOnFromEpochToEpoch) {
  EXPECT_THAT(windows({.num_steps = 2, .sync_with_dataloader = false}, 3),
              ElementsAre(false, true, false, true, false, true));
}

TEST(Accumulation, OutsideALoopOnlyTheNumberCounts) {
  Accumulation accumulation({.num_steps = 2});
  GradientState gradients;
  accumulation.next(gradients);
  EXPECT_FALSE(gradients.sync_gradients());
  accumulation.next(gradients);
  EXPECT_TRUE(gradients.sync_gradients());
  EXPECT_EQ(accumulation.step(), 2);
}

TEST(Accumulation, RefusesFewerThanOneBatch) {
  try {
    Accumulation({.num_steps = 0});
    FAIL() << "0 batches for a step were taken";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gradient_accumulation_steps is 0; expected a number of batches"));
  }
}

}  // namespace
}  // namespace hasten::training
