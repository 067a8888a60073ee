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

}  // namespace
}  // namespace hasten::training
