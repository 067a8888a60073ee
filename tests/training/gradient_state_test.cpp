#include "hasten/training/gradient_state.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

namespace hasten::training {
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

TEST(GradientState, AnOptimizerWhereAFreedOneLayIsNotPrepared) {
  GradientState state;
  const std::vector<at::Tensor> parameters{torch::ones({1}, torch::requires_grad())};
  std::optional<torch::optim::SGD> place(std::in_place, parameters, 0.1);
  auto handle = state.set_prepared(*place);
  state.set_step_was_skipped(*place, true);
  EXPECT_TRUE(state.is_prepared(*place));
  EXPECT_TRUE(state.step_was_skipped(*place));

  handle.reset();
  place.emplace(parameters, 0.2);

  EXPECT_FALSE(state.is_prepared(*place));
  EXPECT_FALSE(state.step_was_skipped(*place));
  EXPECT_FALSE(state.optimizer_step_was_skipped());
}

TEST(GradientState, AnOptimizerIsPreparedAsLongAsOneOfItsHandlesExists) {
  GradientState state;
  torch::optim::SGD sgd(std::vector<at::Tensor>{torch::ones({1}, torch::requires_grad())}, 0.1);
  auto first = state.set_prepared(sgd);
  state.set_step_was_skipped(sgd, true);
  auto second = state.set_prepared(sgd);

  first.reset();
  EXPECT_TRUE(state.is_prepared(sgd));
  EXPECT_TRUE(state.step_was_skipped(sgd));

  second.reset();
  EXPECT_FALSE(state.is_prepared(sgd));
}

}  // namespace
}  // namespace hasten::training
