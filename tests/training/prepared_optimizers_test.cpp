#include "hasten/training/prepared_optimizers.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

namespace hasten::training {
namespace {

/// One optimizer that counts how often its gradients were forgotten.
struct Loop {
  std::vector<at::Tensor> parameters{torch::ones({1}, torch::requires_grad())};
  torch::optim::SGD sgd{parameters, 0.1};
  PreparedOptimizers optimizers;
  std::shared_ptr<const void> handle = optimizers.add(sgd);
  int num_forgotten = 0;

  void zero_grad(bool ends_window) {
    optimizers.zero_grad(sgd, ends_window, [this] { ++num_forgotten; });
  }
  void held_batch() {
    optimizers.begin_batch();
    optimizers.note_backward(true);
  }
};

TEST(PreparedOptimizers, APlainLoopForgetsAtEitherPlace) {
  Loop loop;
  loop.zero_grad(true);
  loop.optimizers.note_backward(false);
  loop.zero_grad(true);

  EXPECT_EQ(loop.num_forgotten, 2);
}

TEST(PreparedOptimizers, NothingIsForgottenInsideAWindowAndItsFirstHeadIsFree) {
  Loop loop;
  loop.optimizers.begin_batch();
  loop.zero_grad(false);
  EXPECT_EQ(loop.num_forgotten, 1) << "what the last window has left";
  loop.optimizers.note_backward(true);
  loop.zero_grad(false);

  EXPECT_EQ(loop.num_forgotten, 1);
}

TEST(PreparedOptimizers, TheHeadOfTheLastBatchKeepsWhatWaitsForTheStep) {
  Loop loop;
  loop.held_batch();
  loop.optimizers.begin_batch();
  loop.zero_grad(true);
  loop.optimizers.note_backward(false);
  loop.optimizers.note_step(loop.sgd, false);
  loop.optimizers.begin_batch();

  EXPECT_EQ(loop.num_forgotten, 0);
  loop.zero_grad(false);
  EXPECT_EQ(loop.num_forgotten, 1) << "the next window's head";
}

TEST(PreparedOptimizers, AWindowThatIsGivenUpWithoutABackwardIsForgottenWithTheNextBatch) {
  Loop loop;
  loop.held_batch();
  loop.optimizers.begin_batch();
  loop.zero_grad(true);
  EXPECT_EQ(loop.num_forgotten, 0);

  loop.optimizers.begin_batch();

  EXPECT_EQ(loop.num_forgotten, 1);
}

TEST(PreparedOptimizers, AWindowThatIsGivenUpBehindItsLastBackwardIsForgottenAtOnce) {
  Loop loop;
  loop.held_batch();
  loop.optimizers.begin_batch();
  loop.optimizers.note_backward(false);
  loop.zero_grad(true);

  EXPECT_EQ(loop.num_forgotten, 1);
}

TEST(PreparedOptimizers, ASkippedStepSettlesTheWindowToo) {
  Loop loop;
  loop.held_batch();
  loop.optimizers.note_step(loop.sgd, true);
  loop.zero_grad(false);

  EXPECT_EQ(loop.num_forgotten, 1);
  EXPECT_TRUE(loop.optimizers.step_was_skipped(loop.sgd));
  EXPECT_TRUE(loop.optimizers.any_step_was_skipped());
}

}  // namespace
}  // namespace hasten::training
