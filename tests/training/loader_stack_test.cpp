#include "hasten/training/loader_stack.h"

#include <gtest/gtest.h>

namespace hasten::training {
namespace {

TEST(LoaderStack, TheInnermostLoaderCountsUntilItIsLeft) {
  LoaderStack stack;
  const LoaderPosition outer{false, 5}, inner{true, 2};
  stack.enter(&outer);
  stack.enter(&inner);
  EXPECT_EQ(stack.position().remainder, 2);
  stack.leave(&inner);
  EXPECT_EQ(stack.position().remainder, 5);
  stack.leave(&outer);

  EXPECT_TRUE(stack.empty());
  EXPECT_EQ(stack.position().remainder, -1);
}

TEST(LoaderStack, EvenBatchesAreSetForLoopsToCome) {
  LoaderStack stack;
  EXPECT_EQ(stack.even_batches(), std::nullopt);
  stack.set_even_batches(false);

  EXPECT_EQ(stack.even_batches(), false);
}

TEST(LoaderStack, CountsWhatALoopReceivedAndForgetsWhatNoBackwardFollowed) {
  using std::chrono::milliseconds;
  LoaderStack stack;
  const LoaderPosition training{false, 5}, evaluation{false, 5};
  stack.enter(&training);
  stack.count(32, milliseconds(2));
  stack.count(16, milliseconds(3));

  const LoaderCounts counts = stack.take_counts();
  EXPECT_EQ(counts.num_batches, 2);
  EXPECT_EQ(counts.num_samples, 48);
  EXPECT_EQ(counts.waited, milliseconds(5));
  stack.enter(&evaluation);
  stack.count(100, milliseconds(7));
  stack.leave(&evaluation);

  EXPECT_EQ(stack.take_counts().num_samples, 0);
}

}  // namespace
}  // namespace hasten::training
