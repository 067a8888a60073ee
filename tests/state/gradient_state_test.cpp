#include "hasten/state/gradient_state.h"

#include <gtest/gtest.h>

namespace hasten::state {
namespace {

TEST(GradientState, OutsideALoopNothingEndsAndGradientsAreExchanged) {
  const GradientState state;

  EXPECT_TRUE(state.sync_gradients());
  EXPECT_FALSE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), -1);
}

TEST(GradientState, TheInnermostLoaderCounts) {
  GradientState state;
  const LoaderPosition outer{false, 5};
  const LoaderPosition inner{true, 2};

  state.enter(&outer);
  state.enter(&inner);

  EXPECT_TRUE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), 2);

  state.leave(&inner);

  EXPECT_FALSE(state.end_of_dataloader());
  EXPECT_EQ(state.remainder(), 5);
}

TEST(GradientState, EnteringAgainDoesNotNest) {
  GradientState state;
  const LoaderPosition loader;

  state.enter(&loader);
  state.enter(&loader);
  state.leave(&loader);

  EXPECT_FALSE(state.in_dataloader());
}

}  // namespace
}  // namespace hasten::state
